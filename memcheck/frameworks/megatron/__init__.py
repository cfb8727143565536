"""Megatron-core: its layers, its buffers, and the schedule of its pipeline.

A forward pass is written like every other framework's, with :mod:`memcheck.autograd`, and replayed to a
:class:`memcheck.autograd.curve.Curve`. In the order in which an estimate meets them:

- ``profile.py``: defaults, abilities, options and families.
- ``setting.py``: what all layers of a job share (attention backend, recompute, options).
- ``stages.py``: which layers each pipeline rank holds, chunk by chunk (uneven splits, layouts).
- ``tensors.py``: parameter tensors of one rank, fused as Megatron fuses them, vocabulary padded.
- ``layers.py``, ``attention.py``, ``mlp.py``, ``moe.py``, ``head.py`` and others: the forward passes.
- ``units.py``: embedding, layers and head of a rank with their tensors and curves.
- ``buffers.py``, ``fsdp.py``, ``states.py``: what is resident, in contiguous buffers or sharded by Megatron-FSDP.
- ``workspaces.py``: side buffers that stay: cuBLAS, Transformer Engine, rotary tables, the micro-batch's own tensors.
- ``schedule.py``, ``step.py``: forwards and backwards of a rank in order, recorded as a program.
- ``ranks.py``, ``worst.py``, ``stack.py``: the estimates of all ranks, or of the fullest one.

Numbers are bytes; degrees are ranks; every allocation names the upstream function that makes it.
"""
