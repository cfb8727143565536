"""Grids over the values of one plan."""
