"""A plan's model, optimizer and step, built from the real libraries."""
