"""Measuring: FLOPs by formula, peaks with their source, timers, memory and provenance."""
