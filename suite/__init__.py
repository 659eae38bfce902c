"""A reproducible benchmark and scaling-study suite for 3D-parallel GPT training (PTD-P)."""

__version__ = "0.1.0"
