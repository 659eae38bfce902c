"""Submitting to SLURM, running there, and finding out what became of it."""
