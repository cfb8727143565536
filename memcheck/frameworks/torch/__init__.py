"""Plain loops over transformers' classes, and what several stacks run: FSDP2, DDP, pipelining, the step of a rank."""
