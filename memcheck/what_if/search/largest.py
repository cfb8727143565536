"""How far one number may grow: the largest micro-batch, or the longest sequence, that fits."""

from __future__ import annotations

import math

from memcheck.job.types import Layout
from memcheck.record import Record
from memcheck.what_if.remedies.price import BATCH, STEPS, Pricer
from memcheck.what_if.remedies.types import METHOD, OTHER, SAME, UNCHANGED, CandidateChange, Priced, join
from memcheck.what_if.search.rank import least_cost
from memcheck.what_if.search.space import Space, together

MOST = 1 << 24
GLOBAL = "training.global_batch_size"


class Growth(Record):
    """The key that grows, and its steps."""

    key: str
    step: int


def largest(pricer: Pricer, space: Space, growth: Growth) -> list[Priced]:
    """For every layout and way to run a step, the plan with the largest value that fits; the largest value first.

    Each way doubles the value until it does not fit, and then halves the interval: within one way, a larger value
    needs more memory. Over several layouts, only those that reach further than the ones before are grown.
    """
    found: list[Priced] = []
    most = 0
    ways = [step for step in space.steps if BATCH not in step.set or growth.key != BATCH]
    for layout in space.layouts:
        for states in space.states:
            base = together(layout, states)
            resolved = pricer.legal(base)
            if resolved is not None and pricer.below_floor(resolved):
                pricer.counts["below_floor"] += len(ways)
                continue
            for way in ways:
                best = _grow(pricer, together(base, way), growth, most if len(space.layouts) > 1 else 0)
                if best is not None:
                    found.append(best)
                    most = max(most, _value(best, growth) // growth.step)
    ordered = sorted(found, key=lambda p: (-_value(p, growth), least_cost(p)))
    chosen: dict[tuple[object, ...], Priced] = {}
    for priced in ordered:
        chosen.setdefault(tuple(sorted(priced.candidate.kinds)), priced)
    return list(chosen.values())


def _grow(pricer: Pricer, way: CandidateChange, growth: Growth, beyond: int) -> Priced | None:
    """The largest value of one way that is more than ``beyond`` steps."""
    low, high, best = beyond, beyond + 1, None
    while high * growth.step <= MOST:
        priced = _at(pricer, way, growth, high)
        if priced is None:
            break
        best, low, high = priced, high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        priced = _at(pricer, way, growth, middle)
        if priced is None:
            high = middle
        else:
            best, low = priced, middle
    return best


def _at(pricer: Pricer, way: CandidateChange, growth: Growth, count: int) -> Priced | None:
    value = count * growth.step
    candidate = _to(pricer, way, growth.key, value)
    priced = pricer.price(join(way, candidate) if way.set else candidate)
    return priced if priced is not None and pricer.fits(priced) else None


def _to(pricer: Pricer, way: CandidateChange, key: str, value: int) -> CandidateChange:
    """The change of the key; a micro-batch that the global batch cannot hold makes the global batch grow."""
    job = pricer.context.training
    words = f"{key.rpartition('.')[2].replace('_', ' ')} {value}"
    if job is None or key != BATCH:
        served = job is None  # more or longer requests, the same answers
        cost, numerics = (UNCHANGED, SAME) if served else (METHOD, OTHER)
        return CandidateChange("largest", words, {key: value}, cost=cost, numerics=numerics)
    stated = pricer.context.plan.training.global_batch_size if pricer.context.plan.training else None
    data = _data(job.layout, way)
    whole = stated or job.micro_batch_size * job.layout.data * job.gradient_accumulation_steps
    if whole % (value * data) == 0:
        return CandidateChange("largest", f"{words} (same global batch)", {key: value})
    steps = max(1, whole // (value * data))
    grown = value * data * steps
    change = {key: value, GLOBAL: grown} if stated is not None else {key: value, STEPS: steps}
    title = f"{words}, global batch {whole} -> {grown}"
    return CandidateChange("largest", title, change, cost=METHOD, numerics=OTHER)


def _value(priced: Priced, growth: Growth) -> int:
    name = growth.key.rpartition(".")[2]
    return int(getattr(priced.resolved.job, name))


def _data(layout: Layout, way: CandidateChange) -> int:
    """Data-parallel ranks under the changes of a layout."""
    names = ("tensor", "context", "pipeline")
    degrees = [way.set.get(f"parallelism.{name}", getattr(layout, name)) for name in names]
    return max(1, layout.world_size // math.prod(int(str(degree)) for degree in degrees))
