"""A step on the GPUs at hand."""
