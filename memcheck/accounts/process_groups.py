"""Process groups as one rank of them sees them: what communicators are made for."""

from __future__ import annotations

from memcheck.autograd.tensor import ceil_div
from memcheck.job.types import Layout
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol
else:
    Protocol = object  # what a protocol is to a running program

Term = tuple[str, int, str]
"""Name, bytes, source."""


class ProcessGroup(Record):
    """One process group as a rank of it sees it."""

    kind: str
    """``world`` | ``data`` | ``tensor`` | ``context`` | ``pipeline`` | ``expert`` ..."""
    local: int
    """Ranks of the group in this node."""
    nodes: int
    collectives: bool
    """Uses rings, trees and NVLink SHARP."""
    peers: int = 0
    """Ranks it sends to and receives from directly."""
    small: bool = False
    """Connects one algorithm alone: sums of a few numbers, or rings that gather and scatter."""


class UsedGroups(Protocol):
    """What of a job decides which groups its ranks exchange in. Two that are equal use the same."""

    def __hash__(self) -> int:
        """Part of the key under which terms are remembered."""

    def groups(self, layout: Layout) -> tuple[ProcessGroup, ...]:
        """Every group of one rank with a communicator of its own, as far as a step uses it."""

    def buffers(self, layout: Layout) -> tuple[Term, ...]:
        """Buffers of libraries that exchange data in addition to NCCL."""


def spread(kind: str, degree: int, stride: int, layout: Layout) -> ProcessGroup | None:
    """Return the process group of ``degree`` ranks, of which every ``stride``-th rank is one; None for a single rank.

    ``kind``: its name, such as ``tensor``.
    """
    if degree <= 1:
        return None
    local = max(1, min(degree, layout.gpus_per_node // stride))
    return ProcessGroup(kind, local, nodes_of(degree, local), collectives=True)


def nodes_of(degree: int, local: int) -> int:
    """Nodes over which ``degree`` ranks lie, ``local`` of them in each."""
    return max(1, ceil_div(degree, local))
