"""transformers' classes under DeepSpeed's engine: its buffers, hooks, host memory and defaults."""
