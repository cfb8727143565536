"""Searches the plans near a plan: what makes it fit, what is fastest, what needs the fewest GPUs."""
