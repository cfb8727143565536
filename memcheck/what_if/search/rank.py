"""Which of the remedies that were found are offered, in which order, and with which edits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memcheck.job.types import Layout
from memcheck.plan.finding import CHEAP, ROOMY, SAME_RESULT, Edit, FileEdits, Remedy
from memcheck.plan.finding import HARDWARE as OTHER_HARDWARE
from memcheck.plan.places import Document
from memcheck.plan.read import with_changes
from memcheck.plan.value_edits import edits
from memcheck.record import Record
from memcheck.what_if.remedies.changes import HARDWARE, NUMERIC_ORDER, UNCHANGED, Priced
from memcheck.what_if.remedies.price import DATA, STEPS, LegalChange

FOLLOWING = (STEPS, DATA)
"""Keys that follow from others, and are no change of their own."""


def changed(priced: Priced) -> int:
    """How many settings are changed."""
    return changed_keys(priced.changes)


def changed_keys(changes: Mapping[str, object]) -> int:
    """How many settings are changed, of changes that need not be priced yet."""
    return sum(key not in FOLLOWING for key in changes)


def least_cost(priced: Priced) -> tuple[object, ...]:
    """Return the sort key of offered changes: first their cost, then other figures by the kind of cost.

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
    """Return the start of the least :func:`least_cost` that an unpriced plan can have."""
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
    """Return the split of a layout."""
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
        """Say whether the plan is no earlier one with more changes; it then counts as an earlier one itself."""
        mine = {(key, str(value)) for key, value in priced.changes.items()}
        time, size = round(priced.slowdown or 0.0, 4), gpus(priced)
        if any(theirs <= mine and slower <= time and fewer <= size for theirs, slower, fewer in self._kept):
            return False
        self._kept.append((mine, time, size))
        return True


def gpus(priced: Priced) -> int:
    """GPUs of the changed plan."""
    return priced.resolved.job.layout.world_size


TWICE = 1.0
"""Relative time from which on a remedy is offered only where there is none that takes less."""
FULL = 0.8
"""Utilization up to which a plan leaves room: for longer sequences, another release, a prediction's error."""


def roomy(priced: Priced) -> bool:
    """Whether a plan leaves room, by its figure and by the upper end of its interval."""
    return priced.sure and priced.estimate.utilization <= FULL


def slow(priced: Priced) -> bool:
    """Whether the work takes more than twice as long."""
    return (priced.slowdown or 0.0) > TWICE


def offered(found: Sequence[Priced]) -> list[Priced]:
    """Return the changes to offer by group, the cheapest first in each, and each with its role.

    A change that takes more than twice as long is left out only where a faster one asks for no more: what changes the
    results, or the hardware, is no reason to hide a slow way to run this training on these GPUs.
    """
    fast = min((p.candidate.cost for p in found if not slow(p)), default=HARDWARE + 1)
    kept = sorted((p for p in found if not slow(p) or p.candidate.cost < fast), key=least_cost)
    same = [index for index, p in enumerate(kept) if p.candidate.cost == UNCHANGED]
    other = [index for index, p in enumerate(kept) if p.candidate.cost == HARDWARE]
    room = [index for index in same if roomy(kept[index])]
    roles = dict(zip((*room[:1], *same[:1], *other[:1]), _roles(room, same, other), strict=True))
    return [p._replace(role=roles.get(index, "")) for index, p in enumerate(kept)]


def _roles(room: list[int], same: list[int], other: list[int]) -> list[str]:
    return [ROOMY] * bool(room) + [CHEAP] * bool(same) + [OTHER_HARDWARE] * bool(other)


def shown(found: Sequence[Priced], most: int) -> list[Priced]:
    """Return at most ``most`` of the priced changes, in their order; those with a role are preferred."""
    places = {index for index, p in enumerate(found) if p.role}
    for index in range(len(found)):
        if len(places) >= most:
            break
        places.add(index)
    return [found[index] for index in sorted(places)[:most]]


def remedy_of(priced: Priced, document: Document) -> Remedy:
    """Return the remedy; its edits are empty where one of them has no certain place."""
    own, elsewhere = edits_of(priced, document)
    return Remedy(
        title=priced.candidate.title,
        set=dict(priced.changes),
        device_bytes=priced.estimate.device_bytes,
        utilization=priced.estimate.utilization,
        slowdown=None if priced.slowdown is None else round(priced.slowdown, 3),
        safe=priced.group == SAME_RESULT,
        group=priced.group,
        host_bytes_per_node=priced.estimate.host_bytes_per_node,
        interval_bytes=priced.estimate.interval_bytes,
        needed_bytes=priced.estimate.needed_bytes,
        needed_interval_bytes=priced.estimate.needed_interval_bytes,
        sure=priced.sure,
        role=priced.role,
        edits=own,
        elsewhere=elsewhere,
        written=written_of(priced, document),
    )


def written_of(priced: Priced, document: Document) -> dict[str, str] | None:
    """The change in the words of a framework's own config; None for a plan."""
    if document.config is None:
        return None
    from memcheck.configs.config_words import said_so

    return said_so(document, priced.changes, priced.resolved)


def edits_of(priced: Priced, document: Document) -> tuple[tuple[Edit, ...], tuple[FileEdits, ...]]:
    """Return edits of the plan's own file, and of the configs that it takes values from."""
    if isinstance(document.values, dict) and "source" in document.values:
        from memcheck.configs.sourced_edits import sourced_edits

        return sourced_edits(document, priced.changes, priced.resolved)
    return edits(document, priced.changes, with_changes(document, priced.changes).values), ()
