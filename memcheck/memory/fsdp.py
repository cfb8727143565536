"""FSDP2's parameter groups: what they gather, reduce and keep.

Source: torch 2.13 torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py and _fsdp_collectives.py. Each tensor is cut
along dim 0 and padded to a multiple of the ranks; a group gathers into one flat buffer, copies out into full parameters
and reduces gradients through one flat input in the reduce dtype.
"""

from __future__ import annotations

from memcheck.job.types import DTYPE_BYTES
from memcheck.memory.state import LocalTensor, shard_numel
from memcheck.memory.tape.tensor import rounded
from memcheck.record import Record


class Group(Record):
    """Sizes of one ``fully_shard`` group on one rank, in bytes."""

    flat: int
    """The all-gather's flat output."""
    gathered: int
    """The unsharded parameters after copy-out."""
    reduce_input: int
    """The reduce-scatter's flat input."""
    reduce_output: int
    """The reduce-scatter's output: the new sharded gradients are views of it."""
    accumulated: int
    """Unsharded gradients in the reduce dtype, kept when micro-batches do not synchronise."""


def group(tensors: list[tuple[LocalTensor, int]], param_dtype: str, reduce_dtype: str) -> Group:
    """``tensors``: each with the number of ranks over which it is sharded."""
    param, reduce = DTYPE_BYTES[param_dtype], DTYPE_BYTES[reduce_dtype]
    flat = gathered = reduce_in = reduce_out = accumulated = 0
    for t, ways in tensors:
        padded = shard_numel(t, ways) * ways
        item = param if t.dtype is None else DTYPE_BYTES.get(t.dtype, 1)
        flat += padded * item if ways > 1 else 0
        gathered += rounded(padded * item)
        if t.trained:
            reduce_in += padded * reduce
            reduce_out += shard_numel(t, ways) * reduce
            accumulated += rounded(t.numel * reduce)
    return Group(rounded(flat), gathered, rounded(reduce_in), rounded(reduce_out), accumulated)


NO_GROUP = Group(0, 0, 0, 0, 0)
