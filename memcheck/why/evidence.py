"""What a message, a log or a snapshot says, as records: figures, messages, deaths, allocations that failed.

A figure is an interval: a log prints ``58.15 GiB``, and 58.145 to 58.155 GiB are printed as that.
"""

from __future__ import annotations

import re
from math import prod

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
