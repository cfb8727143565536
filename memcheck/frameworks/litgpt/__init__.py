"""LitGPT's layers, head and defaults around torch's data parallelism."""
