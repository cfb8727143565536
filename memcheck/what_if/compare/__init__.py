"""Plans beside GPUs: what fits where, with how much room, and how fast."""
