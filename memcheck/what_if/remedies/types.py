"""What is tried before it becomes a remedy."""

from __future__ import annotations

from memcheck.accounts.estimate import Estimate
from memcheck.finding import OTHER_HARDWARE, OTHER_RESULT, SAME_RESULT
from memcheck.job.resolve import Resolved
from memcheck.memory.fit import within
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

UNCHANGED = 0
"""Cost of a change that keeps the result of the training, up to rounding, and the hardware."""
NUMERICS = 1
"""Cost of a change with other numerics (8-bit states, a quantised cache), which changes the result somewhat."""
METHOD = 2
"""Cost of a change that makes another experiment, such as adapters instead of full training, or shorter requests."""
HARDWARE = 3
"""Cost of a change that asks for more GPUs or for other GPUs."""


SAME, EQUIVALENT, OTHER = "none", "equivalent", "changes results"
"""What a change does to the numbers of the training: nothing; another order of the same sums; other results."""


class CandidateChange(Record):
    """A change of the plan that may help, or several at once."""

    kind: str
    """Changes of one kind are alternatives of each other."""
    title: str
    set: dict[str, Any]
    """Dotted plan keys, down to the field (``training.optimizer.name``), and their new values."""
    slowdown: float = 0.0
    """Relative loss of time, taken where no model gives it: for serving on GPUs whose rates are not known."""
    cost: int = UNCHANGED
    """What the change asks for in addition to time: UNCHANGED, NUMERICS, METHOD or HARDWARE."""
    numerics: str = SAME
    parts: tuple[CandidateChange, ...] = ()
    """The single changes of a combination."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of change that it is made of."""
        return tuple(part.kind for part in self.parts) if self.parts else (self.kind,)


def join(*candidates: CandidateChange) -> CandidateChange:
    """One change that sets the keys of several changes."""
    parts = tuple(part for each in candidates for part in (each.parts or (each,)))
    if len(parts) == 1:
        return parts[0]
    changes: dict[str, object] = {}
    slower = 1.0
    for part in parts:
        changes.update(part.set)
        slower *= 1 + part.slowdown
    return CandidateChange(
        kind="+".join(part.kind for part in parts),
        title="; ".join(part.title for part in parts),
        set=changes,
        slowdown=slower - 1,
        cost=max((part.cost for part in parts), default=UNCHANGED),
        numerics=max((part.numerics for part in parts), key=NUMERIC_ORDER.index, default=SAME),
        parts=parts,
    )


NUMERIC_ORDER = (SAME, EQUIVALENT, OTHER)


class Priced(Record):
    """A legal candidate with what the engine says about it."""

    candidate: CandidateChange
    changes: dict[str, Any]
    """Everything that is set, as the plan's author would write it, with what follows from the candidate."""
    resolved: Resolved
    estimate: Estimate
    slowdown: float | None
    """Relative time of a token against the plan as written; None where there is no model of it."""
    limit: float = 1.0
    """The share of the capacity that the plan may need."""
    role: str = ""
    """The role of the remedy among those that are offered: see :data:`memcheck.finding.ROLES`."""

    @property
    def sure(self) -> bool:
        """Whether the changed plan fits with its whole interval, so that it is not uncertain (MEM104)."""
        return within(self.estimate.needed_interval_bytes[1], self.estimate.capacity_bytes, self.limit)

    @property
    def group(self) -> str:
        """The group of the remedy, by what it asks for: see :data:`memcheck.finding.GROUPS`."""
        cost = self.candidate.cost
        return OTHER_HARDWARE if cost == HARDWARE else SAME_RESULT if cost == UNCHANGED else OTHER_RESULT

    @property
    def rank(self) -> tuple[int, float, float]:
        """The sort key of remedies, the cheapest first: cost, then time lost, then the utilization of the GPU."""
        return (*self.price, self.estimate.utilization)

    @property
    def price(self) -> tuple[int, float]:
        """The cost of the change and the time lost. Time gained counts as 0, so that a faster GPU is not preferred."""
        return self.candidate.cost, max(0.0, round(self.slowdown or 0.0, 3))
