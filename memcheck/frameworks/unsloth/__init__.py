"""unsloth: transformers' Trainer around attention, feed-forward, norms, checkpoints and loss of its own."""
