"""Experiments: the declared sweep, its expansion into points, their validity and identity."""
