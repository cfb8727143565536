"""torchtune's layers, chunked loss and defaults around torch's data parallelism."""
