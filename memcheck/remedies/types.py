"""What is tried before it becomes a remedy."""

from __future__ import annotations

from typing import Any

from memcheck.memory.types import Estimate
from memcheck.record import Record
from memcheck.source.types import Document

UNCHANGED = 0
"""The training result stays what it was, beyond rounding, on the same hardware."""
NUMERICS = 1
"""Other numbers on the way (8-bit states, a quantised cache): the result changes somewhat."""
HARDWARE = 2
"""More or other GPUs."""
METHOD = 3
"""Another experiment: adapters instead of full training."""


class Candidate(Record):
    """A change of the plan that may help."""

    kind: str
    """Changes of one kind are alternatives of each other: only the mildest that fits is shown."""
    title: str
    set: dict[str, Any]
    """Dotted plan keys and their new values."""
    slowdown: float
    cost: int = UNCHANGED
    """What it asks for beside time: UNCHANGED, NUMERICS, HARDWARE or METHOD."""
    accumulate: float = 1.0
    """Factor on the micro-batches per step that keeps the global batch."""
    data: float = 1.0
    """Factor on the data-parallel ranks."""
    parts: tuple[Candidate, ...] = ()
    """The single changes of a combination."""


class Priced(Record):
    """A legal candidate with what the engine says about it."""

    candidate: Candidate
    changes: dict[str, Any]
    """Everything that is set, with what follows from the candidate."""
    document: Document
    estimate: Estimate

    @property
    def rank(self) -> tuple[int, float, float]:
        """Cheapest first: what it asks for, then time lost, then how much room it leaves."""
        return (*self.price, self.estimate.utilization)

    @property
    def price(self) -> tuple[int, float]:
        """What it asks for and the time lost; a faster GPU is no reason to buy the largest one."""
        return self.candidate.cost, max(0.0, round(self.candidate.slowdown, 3))
