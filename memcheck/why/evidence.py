"""What a message, a log or a snapshot says, as records: figures, messages, deaths, allocations that failed.

A figure is an interval: a log prints ``58.15 GiB``, and 58.145 to 58.155 GiB are printed as that.

How much of the evidence speaks for one wrong number of a plan, beyond amounts: the phase and the failed tensor.

Each candidate is a plan that the engine has estimated. It dies in the first phase whose peak the GPU does not hold, and
its ledger has the tensors that are made there. A candidate that dies in another phase than the run, or that makes no
tensor of the size that failed, is less likely than one that does.
"""

from __future__ import annotations

import re
from math import prod

from memcheck.accounts.estimate import Estimate, RankEstimate
from memcheck.autograd.tensor import ITEM_BYTES
from memcheck.record import Record

DEVICE, HOST, SHARED, NOT_OOM, UNKNOWN = "device", "host", "shared-memory", "not-oom", "unknown"
KINDS = (DEVICE, HOST, SHARED, NOT_OOM, UNKNOWN)
"""Kinds of death: memory of a device, of the host, of a kernel's block, no lack of memory, or not known."""

CERTAIN, LIKELY, POSSIBLE = "certain", "likely", "possible"
"""How sure a statement is, the surest first."""

TRIED, TOTAL, FREE, IN_USE = "tried_bytes", "total_bytes", "free_bytes", "in_use_bytes"
ALLOCATED, RESERVED, UNALLOCATED = "allocated_bytes", "reserved_bytes", "reserved_unallocated_bytes"
PRIVATE, ALLOWED, OTHERS, UNEXPLAINED = (
    "private_pool_bytes",
    "allowed_bytes",
    "other_process_bytes",
    "unexplained_bytes",
)
FIGURES = (TRIED, TOTAL, FREE, IN_USE, ALLOCATED, RESERVED, UNALLOCATED, PRIVATE, ALLOWED, OTHERS, UNEXPLAINED)
"""Names of figures: asked for, the device's size, free, in use by this process, allocated by the framework, reserved by
it, reserved and not allocated, in private pools, allowed to this process, in use by named
other processes, and in use by nothing that is named.
"""


class Figure(Record):
    """One printed size: its value, and half a unit of its last printed digit."""

    bytes: int
    resolution_bytes: int
    """0 where the exact number of bytes is printed."""
    line: int
    """Line of the evidence, from 1."""

    @property
    def low_bytes(self) -> int:
        """The smallest size that is printed so."""
        return max(0, self.bytes - self.resolution_bytes)

    @property
    def high_bytes(self) -> int:
        """The largest size that is printed so."""
        return self.bytes + self.resolution_bytes


class Message(Record):
    """One line, or a few that belong together, from which a kind of death follows."""

    pattern: str
    """Identifier of the pattern in the table of messages."""
    kind: str
    """One of :data:`KINDS`."""
    certainty: str
    line: int
    text: str
    """The line as printed, made safe for a terminal and shortened."""
    figures: dict[str, Figure]
    """By name of :data:`FIGURES`; what is not printed is absent."""
    rank: int | None = None
    gpu_index: int | None = None
    phase: str | None = None
    """``load`` | ``init`` | ``forward`` | ``loss`` | ``backward`` | ``optimizer`` | ``evaluation`` | ``save`` | ..."""
    frames: tuple[str, ...] = ()
    """Lines of the traceback and of the source around the message, the innermost last."""
    means: str = ""
    """What the message says, as a sentence."""


class TensorReading(Record):
    """One tensor that the failed size may be."""

    tensor: str
    """``logits``, ``attention scores``, ``MLP weight``, ..."""
    shape: tuple[int, ...]
    """The shape at the middle of the interval."""
    dtype: str
    bytes: int
    """Bytes of that shape and type."""
    certainty: str
    """``certain`` is never said; ``likely`` where a frame or a stated batch decides, else ``possible``."""
    free_name: str = ""
    """The dimension that follows from the figure alone: ``tokens`` | ``batch`` | ``""`` where none is free."""
    free_range: tuple[int, int] = (0, 0)
    """Smallest and largest value of the free dimension that is printed so."""
    note: str = ""


TYPES = (
    ("bfloat16", "bf16"),
    ("float16", "fp16"),
    ("half", "fp16"),
    ("int64", "int64"),
    ("double", "fp64"),
    ("float32", "fp32"),
)
"""Words of a printed type."""
PRINTED = re.compile(r"(?:shape|Shape|size)\s*[=:(]*\s*\(?\[\s*(\d{1,12}(?:\s*,\s*\d{1,12}){0,7})\s*\]")


def printed_shape(line: str) -> TensorReading | None:
    """The tensor whose shape a line prints (TensorFlow: ``tensor with shape[1,12,1024,1024] and type float``)."""
    found = PRINTED.search(line[:4096])
    if found is None:
        return None
    shape = tuple([int(size) for size in found[1].split(",")])
    dtype = next((name for word, name in TYPES if word in line), "fp32")
    return TensorReading(
        tensor="tensor of the printed shape",
        shape=shape,
        dtype=dtype,
        bytes=prod(shape) * ITEM_BYTES[dtype],
        certainty=LIKELY,
    )


CLOSE = 0.03
"""Share by which predictions of allocated bytes are off."""


class Observed(Record):
    """What a message says beyond the size of the GPU."""

    phase: str | None
    floor_bytes: int | None
    """Live bytes and those asked for; None where the message does not print them."""
    bounds: tuple[int, int] | None
    """Smallest and largest bytes of the tensor that failed; None where the figure names none."""


def support(observed: Observed, plan: Estimate, candidate: Estimate) -> float:
    """Points for a candidate; at least :data:`ENOUGH` if the phase and the tensor speak for it and not for the plan."""
    points = _of_phase(observed, candidate) + _of_tensor(observed, plan, candidate)
    peak = _peak_in(observed.phase, candidate)
    if observed.floor_bytes:
        points -= min(1.0, abs(peak - observed.floor_bytes) / observed.floor_bytes)
    return points


ENOUGH = 2.5


def _rank(estimate: Estimate) -> RankEstimate:
    return next(r for r in estimate.ranks if r.pipeline_rank == estimate.pipeline_rank)


def _peak_in(phase: str | None, estimate: Estimate) -> int:
    found = [i.allocated_bytes for i in _rank(estimate).instants if i.name == phase]
    return max(found, default=estimate.allocated_bytes)


def _of_phase(observed: Observed, candidate: Estimate) -> float:
    """1.5 if the candidate dies in the phase of the run, -1.5 if in another, 0 where a phase is not known."""
    instants = _rank(candidate).instants
    if observed.phase not in [i.name for i in instants] or not observed.floor_bytes:
        return 0.0 if observed.phase in ("forward", "loss", "backward", None) else -1.5
    floor = observed.floor_bytes
    for instant in instants:
        if instant.name == observed.phase:
            return 1.5 if instant.allocated_bytes >= floor * (1 - CLOSE) else -1.5
        if instant.allocated_bytes >= floor * (1 + CLOSE):
            return -1.5
    return 0.0


def _of_tensor(observed: Observed, plan: Estimate, candidate: Estimate) -> float:
    """2 if only the candidate makes a tensor of the size that failed, -1 if only the plan as stated does."""
    if observed.bounds is None:
        return 0.0
    here, there = _makes(observed.bounds, candidate), _makes(observed.bounds, plan)
    if here == there:
        return 0.0 if here else -0.5
    return 2.0 if here else -1.0


def _makes(bounds: tuple[int, int], estimate: Estimate) -> bool:
    low, high = bounds
    return any(low <= row.bytes // row.copies <= high for row in _rank(estimate).ledger if row.copies)
