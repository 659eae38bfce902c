"""Tensor and data parallelism: process groups, sharded layers, gradient reduction."""
