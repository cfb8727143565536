"""torchtitan's layers, loss and defaults around torch's data parallelism."""
