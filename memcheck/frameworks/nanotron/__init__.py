"""nanotron: its own layers, loss, gradient accumulator and ZeRO-1, on the schedules of Megatron's folder."""
