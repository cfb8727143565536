"""Serving engines: one folder for each, with the arithmetic by which it divides the memory of its GPUs."""
