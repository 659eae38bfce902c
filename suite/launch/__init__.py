"""Launching points: the sweep, the backends, the node's supervisor and the rank's entry point."""
