"""Measuring the constants of the machine at hand, so that the simulator predicts it."""
