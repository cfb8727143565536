"""Ring attention over a context-parallel group: what torch allocates around the local kernel.

Source: torch 2.13 torch/distributed/tensor/experimental/_context_parallel/_attention.py. With the default rotation
(all-gather) every rank holds the keys and values of the whole sequence while a layer's attention runs; partial outputs
are merged in fp32, and backward accumulates its gradients in fp32 twice (sum and current step), keys' and values' once
more while they travel.
"""

from __future__ import annotations

from memcheck.autograd.tensor import Storage, Tape, Value


def forward_buffers(tape: Tape, q: Value, k: Value, v: Value, ways: int, v_dim: int) -> list[Storage]:
    """Contiguous keys and values, their concatenation, the gathered ones, and two fp32 outputs in the merger."""
    found = _keys_and_values(tape, k, v, ways)
    for _ in range(2):
        found.append(tape.new((*q.shape[:-1], v_dim), "fp32", "merged output"))
    return found


def backward_buffers(tape: Tape, q: Value, k: Value, v: Value, ways: int) -> list[Storage]:
    """Keys and values again, fp32 gradients of the ring and of the current step, and those that travel."""
    found = _keys_and_values(tape, k, v, ways)
    for what in ("summed", "this step's"):
        found.extend(tape.new(t.shape, "fp32", f"{what} gradient") for t in (q, k, v))
    found.extend(tape.new((2, *k.shape), "fp32", "travelling gradients") for _ in range(2))
    return found


def _keys_and_values(tape: Tape, k: Value, v: Value, ways: int) -> list[Storage]:
    local = [tape.new(t.shape, t.dtype, "contiguous keys and values") for t in (k, v)]
    both = k.numel + v.numel
    joined = tape.new((both,), k.dtype, "keys and values")
    return [*local, joined, tape.new((both * ways,), k.dtype, "gathered keys and values")]
