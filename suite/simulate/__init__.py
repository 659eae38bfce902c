"""Predicting a point from its hardware: operators, network, memory, and the event simulation of its program."""
