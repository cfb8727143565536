"""The orders of suggestions. Sorting is stable: what ranks the same stays in the order in which it was tried."""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.job.types import Layout
from memcheck.record import Record
from memcheck.what_if.remedies.price import DATA, STEPS, LegalChange
from memcheck.what_if.remedies.types import NUMERIC_ORDER, UNCHANGED, Priced

FOLLOWING = (STEPS, DATA)
"""Keys that follow from others, and are no change of their own."""


def changed(priced: Priced) -> int:
    """How many settings are changed."""
    return changed_keys(priced.changes)


def changed_keys(changes: Mapping[str, object]) -> int:
    """How many settings are changed, of changes that need not be priced yet."""
    return sum(key not in FOLLOWING for key in changes)


def least_cost(priced: Priced) -> tuple[object, ...]:
    """The sort key of offered changes: first their cost, then other figures by the kind of cost.

    For changes that keep results and hardware: time to a whole percentage, then the number of changed settings. For
    other changes: whether they may fail and the number of changed settings, before GPUs and time. Host memory decides
    between changes that are equal otherwise. Of equal ones the mildest comes first.
    """
    asks, slower = priced.price
    host, keys, close = priced.estimate.host_bytes_per_node, changed(priced), not priced.sure
    if asks == UNCHANGED:
        time = priced.slowdown or 0.0
        return asks, round(time, 2), keys, close, gpus(priced), host, round(time, 3)
    return asks, close, keys, gpus(priced), slower, host


def cost_floor(legal: LegalChange, slowdown: float | None) -> tuple[object, ...]:
    """The start of the least :func:`least_cost` that an unpriced plan can have."""
    asks, keys, job = legal.candidate.cost, changed_keys(legal.changes), legal.resolved.job
    world = job.layout.world_size
    if asks == UNCHANGED:
        time, host = slowdown or 0.0, legal.shared.least_host_bytes(job)
        return asks, round(time, 2), keys, False, world, host, round(time, 3)
    return asks, False, keys, world, max(0.0, round(slowdown or 0.0, 3))


def own_keys(changes: Mapping[str, object]) -> set[str]:
    """The keys that are changed, without those that follow."""
    return set(changes).difference(FOLLOWING)


def fastest(priced: Priced) -> tuple[object, ...]:
    """Time of a step; then what it does to the numbers, the settings changed, host memory."""
    numerics = NUMERIC_ORDER.index(priced.candidate.numerics)
    host, use = priced.estimate.host_bytes_per_node, priced.estimate.needed_bytes
    return round(priced.slowdown or 0.0, 4), numerics, changed(priced), host, use


class Split(Record):
    """How a job is split over its GPUs. What runs on them then (schedule, virtual stages, sharding, micro-batch,
    recompute, offloading) are settings: one split with other settings is no other answer.
    """

    nodes: int
    gpus_per_node: int
    tensor: int
    context: int
    pipeline: int
    expert: int
    expert_tensor: int


def split_of(layout: Layout) -> Split:
    """The split of a layout."""
    return Split(
        nodes=layout.nodes,
        gpus_per_node=layout.gpus_per_node,
        tensor=layout.tensor,
        context=layout.context,
        pipeline=layout.pipeline,
        expert=layout.expert,
        expert_tensor=layout.expert_tensor,
    )


class ParetoFilter:
    """Holds plans back that change more than an earlier one, and gain nothing by it."""

    def __init__(self) -> None:
        self._kept: list[tuple[set[tuple[str, str]], float, int]] = []

    def adds(self, priced: Priced) -> bool:
        """Whether the plan is no earlier one with more changes; it then counts as an earlier one itself."""
        mine = {(key, str(value)) for key, value in priced.changes.items()}
        time, size = round(priced.slowdown or 0.0, 4), gpus(priced)
        if any(theirs <= mine and slower <= time and fewer <= size for theirs, slower, fewer in self._kept):
            return False
        self._kept.append((mine, time, size))
        return True


def gpus(priced: Priced) -> int:
    """GPUs of the changed plan."""
    return priced.resolved.job.layout.world_size
