"""Training: data, optimizer and the step."""
