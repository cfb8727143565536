"""Two states of plans compared: what moved, by plan and by component."""
