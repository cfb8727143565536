"""One training step on tensors without data, every storage followed."""
