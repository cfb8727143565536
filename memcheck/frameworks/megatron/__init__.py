"""What Megatron-core adds to the memory of a training step.

The layers' own memory is in ``memcheck.memory.ledger.megatron_*``, on the tape like every other ledger; each
replays to a :class:`memcheck.autograd.curve.Curve`. Here is what surrounds them, as small functions:

- ``setting.megatron_setting(job, architecture, arch)``: the ledger's setting (attention backend, recompute).
- ``stages.stages(num_layers, job)``: which layers each pipeline rank holds, chunk by chunk (uneven splits, layouts).
- ``tensors.block_tensors``, ``embedding_tensors``, ``head_tensors``: parameter tensors of one rank, fused as Megatron
  fuses them, vocabulary padded.
- ``buffers.resting(job, tensors)``: a :class:`memcheck.accounts.state.Resting` from contiguous parameter and gradient
  buffers, master weights and optimizer states (distributed and precision-aware optimizers).
- ``workspaces.workspaces(...)``: persistent side buffers: cuBLAS and TE workspaces, the global memory buffer, dummy
  weight gradients, rotary tables, the micro-batch's own tensors.
- ``schedule.runs(...)``: forwards and backwards of one rank in order, warm-up included, as runs of alike ones.
- ``walk.walk(...)``: lays the curves along the schedule on a timeline; ``fsdp`` replaces the buffers where it shards.
- ``ranks.megatron_ranks(job, architecture, device)``: all of it; one estimate per pipeline rank.

Numbers are bytes; degrees are ranks; every allocation names the upstream function that makes it.
"""
