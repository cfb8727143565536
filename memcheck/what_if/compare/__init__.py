"""Plans compared over GPUs: which plan fits which GPU, with how much room, and how fast."""
