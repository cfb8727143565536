"""What `suggest` has to say about one plan."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from memcheck.finding import Remedy
from memcheck.record import Record
from memcheck.result import PlanResult
from memcheck.what_if.remedies.price import LayoutTally

FITS, UNCERTAIN, SUGGESTED = "fits", "uncertain", "suggested"
NOTHING_FITS, NOT_JUDGED = "nothing-fits", "error"


class Suggestion(Record):
    """One remedy with what it costs."""

    remedy: Remedy
    numerics: str
    """``none`` | ``equivalent`` | ``changes results``."""
    gpus: int
    tokens_per_second_per_gpu: float | None
    """A model, for ranking; None where there is none."""
    price_per_gpu_hour: float | None = None
    """Price of one GPU for an hour, from the configuration; None where it states no price for the GPU."""
    price_per_million_tokens: float | None = None
    """Price of a million tokens: ``price_per_gpu_hour`` x GPUs x the modelled hours for a million tokens."""
    serves: str = ""
    """What can be served otherwise than the plan says; empty where nothing is."""


class CardCost(Record):
    """The plan as it is written on one GPU that has a price."""

    gpu: str
    fits: bool
    sure: bool
    """Whether the whole interval of the need is within the limit."""
    utilization: float
    slowdown: float | None
    price_per_hour: float
    """Money per hour for all GPUs of the plan together."""
    price_per_million_tokens: float | None


class Suggestions(Record):
    """The answer for one plan."""

    plan: PlanResult
    """The plan as written."""
    goal: str
    status: str
    """``fits`` (nothing is to be done) | ``uncertain`` (likewise: it passes, and its interval crosses the limit or the
    capacity) | ``suggested`` | ``nothing-fits`` | ``error`` (it cannot be judged, or
    fails by a rule that is not about memory, which no suggestion would end)."""
    found: tuple[Suggestion, ...] = ()
    """The suggestions that were found, the best first."""
    cards: tuple[CardCost, ...] = ()
    """With the goal ``cheapest``: the plan as it is written on each GPU that has a price, the cheapest that fits first.
    """
    best_as_written: bool = False
    """The plan as written is the best of those that fit."""
    keep: tuple[str, ...] = ()
    config: bool = False
    """The file is a framework's config or a launch script, which no suggestion edits."""
    tally: LayoutTally = LayoutTally()
    space: Mapping[str, tuple[object, ...]] = MappingProxyType({})
    exhausted: bool = False
    smallest: Suggestion | None = None
    budget: float | None = None
    """Seconds after which the search was cut short; None where it was not."""
    unsearched: int = 0
    """Plans of the spaces that it had begun, and did not look at."""
    timed_as: str = ""
    """The GPU whose rates stand in for those of the plan's own."""
