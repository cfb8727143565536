"""Which changes of a plan are combined with one another."""

from __future__ import annotations

from memcheck.what_if.remedies.candidates import STAGE
from memcheck.what_if.remedies.price import Pricer
from memcheck.what_if.remedies.types import CandidateChange, Priced

OFFLOADS = frozenset({"offload", "offload-parameters"})
"""Kinds of change that move states to host memory, which takes more time than others."""
STRONGEST = 7
"""Kinds of change of which a quick search tries pairs."""


def apart(one: CandidateChange, other: CandidateChange) -> bool:
    """Whether two changes can be made together."""
    return not set(one.kinds) & set(other.kinds)


def index_of(priced: list[Priced], part: CandidateChange) -> int:
    """The place of a single change among those that are priced: what frees less comes before what frees more."""
    return next((index for index, each in enumerate(priced) if each.candidate is part), 0)


def milds(part: CandidateChange, kind: str) -> bool:
    """Whether changes of a kind may replace a part of a combination: its own, or a ZeRO stage that it sets as well."""
    return kind == part.kind or (kind == "zero" and STAGE in part.set)


def strongest(same: list[Priced], pricer: Pricer) -> list[Priced]:
    """The most effective change of every kind, and the fastest that has any effect where that is another one."""
    best: dict[str, list[Priced]] = {}
    estimate = pricer.context.estimate
    before = pricer.full(estimate) if estimate else 0.0
    for each in sorted(same, key=pricer.pressure):
        if pricer.pressure(each) < before:
            best.setdefault(each.candidate.kind, []).append(each)
    found = list(best.values())[:STRONGEST]
    quick = [min(some, key=lambda p: pricer.slowdown(p.candidate, p.resolved) or 0.0) for some in found]
    return [each for some, fast in zip(found, quick, strict=True) for each in (some[0], fast)[: 1 + (fast != some[0])]]


def faster(pool: list[Priced], best: float | None, pricer: Pricer) -> list[Priced]:
    """The changes of ``pool`` that could be in a pair with a smaller slowdown than ``best``.

    The slowdown of a pair is taken as the sum of its changes' own. With ``best=None`` all of ``pool`` may.
    """
    if best is None:
        return pool
    times = [pricer.slowdown(p.candidate, p.resolved) or 0.0 for p in pool]
    gained = min(0.0, *times) if times else 0.0
    return [p for p, time in zip(pool, times, strict=True) if time + gained < best]
