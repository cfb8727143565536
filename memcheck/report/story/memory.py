"""Where the memory goes: by component, over a step, on every rank, in the largest tensors."""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.accounts.estimate import CACHE, PARTS, Estimate, HostMoment, RankEstimate
from memcheck.edge.text import gib, percent, words
from memcheck.report.details import peak
from memcheck.report.seen import CACHE_ROW, cache_note
from memcheck.report.story.blocks import Bar, Chart, Prose, Scale, Section, Segment, Table
from memcheck.report.verdict import host_decides, short_of_host
from memcheck.result import PlanResult

AROUND = ("load", "save")
"""Instants before and after the steps."""
LARGEST = 10
"""The most tensor groups that a table shows."""
CLOSE_UP = 0.5
"""A step that needs less than this share of the capacity is drawn on an axis of its own."""


def segments(components: Mapping[str, int]) -> tuple[Segment, ...]:
    """A bar's stretches, in the order of all reports."""
    return tuple(Segment(name, components[name]) for name in PARTS if components.get(name, 0) > 0)


def scale(plan: PlanResult, *needs: int) -> Scale:
    """From nothing to the capacity, or as far as the longest bar."""
    capacity = plan.estimate.capacity_bytes if plan.estimate else 0
    limit = int(capacity * plan.fail_above) if plan.fail_above < 1 else 0
    return Scale(max(capacity, 1, *needs), capacity, limit)


def pictures(plan: PlanResult, estimate: Estimate) -> tuple[Chart, ...]:
    """The GPU's, and that of a node that lacks memory; first the one that decides."""
    node_s = tuple(node(plan, moment) for moment in short_of_host(plan)[:1])
    gpu_s = (picture(plan, estimate),)
    return node_s + gpu_s if host_decides(plan) else gpu_s + node_s


def node(plan: PlanResult, moment: HostMoment) -> Chart:
    """What the processes of a node hold at its fullest moment against what it has."""
    capacity, parts = plan.host_capacity_bytes or 0, segments(dict(moment.components))
    bar = Bar("", parts, f"{gib(moment.bytes)} GiB")
    told = ", ".join(f"{words(each.key)} {gib(each.bytes)}" for each in parts)
    title = f"{gib(moment.bytes)} GiB of host memory of the {gib(capacity)} GiB of a node: {told}"
    axis = Scale(max(capacity, moment.bytes, 1), capacity)
    return Chart(title, (bar,), axis, capacity_name="memory of a node")


def picture(plan: PlanResult, estimate: Estimate) -> Chart:
    """What the fullest GPU holds at its peak against what it has; the allocator's cache is a tail of it."""
    low, high = estimate.needed_interval_bytes
    share = percent(estimate.utilization)
    bar = Bar("", segments(estimate.parts_bytes), f"{gib(estimate.needed_bytes)} GiB")
    parts = ", ".join(f"{words(each.key)} {gib(each.bytes)}" for each in bar.segments)
    title = f"{gib(estimate.needed_bytes)} GiB, {share} of {gib(estimate.capacity_bytes)} GiB: {parts}"
    reach = scale(plan, estimate.device_bytes, high)
    name = "capacity of a GPU" if short_of_host(plan) else "capacity"
    return Chart(title, (bar,), reach, interval_bytes=(low, high), capacity_name=name)


def components(plan: PlanResult, estimate: Estimate) -> Section:
    """The table of the components' memory, next to the chart of the same figures."""
    capacity = estimate.capacity_bytes
    found = segments(estimate.needed_parts_bytes)
    slack = capacity - estimate.needed_bytes
    cache = (CACHE_ROW, gib(estimate.cache_bytes), share(estimate.cache_bytes, capacity))
    cached = (CACHE,) if estimate.cache_bytes else ()
    table = Table(
        f"One GPU at the peak: {peak(estimate)}",
        ("Component", "GiB", "of capacity"),
        tuple((words(each.key), gib(each.bytes), share(each.bytes, capacity)) for each in found),
        right=(1, 2),
        keys=tuple(each.key for each in found),
        foot=(
            ("device memory needed", gib(estimate.needed_bytes), share(estimate.needed_bytes, capacity)),
            *((cache,) if cached else ()),
            (f"capacity of {plan.gpu}" if plan.gpu else "capacity", gib(capacity), share(capacity, capacity)),
            ("missing" if slack < 0 else "left", gib(abs(slack)), share(abs(slack), capacity)),
        ),
        foot_keys=("", *cached, "", ""),
    )
    note = cache_note(estimate)
    return Section("memory", "Where the memory goes", (table, Prose(note)) if note else (table,))


def share(count: int, capacity: int) -> str:
    """Bytes as a percentage of the capacity; empty without one."""
    return percent(count / capacity) if capacity else ""


def step(plan: PlanResult, estimate: Estimate) -> Section | None:
    """Memory from one instant of the step to the next, on the worst rank."""
    rank = next((r for r in estimate.ranks if r.pipeline_rank == estimate.pipeline_rank), None)
    if rank is None or not any(i.components_bytes for i in rank.instants):
        return None
    bars = moments(rank, estimate)
    most = max(bar.bytes for bar in bars)
    axis = scale(plan, most)
    if most < CLOSE_UP * axis.capacity_bytes:
        axis = Scale(int(most * 1.15), axis.capacity_bytes)
    where = f", on pipeline rank {rank.pipeline_rank}" if len(estimate.ranks) > 1 else ""
    told = ", ".join(f"{bar.label} {bar.figure}" for bar in bars)
    outside = estimate.components_bytes.get("context_and_nccl", 0)
    note = (
        f"The highest moment of each phase, in GiB{where}. Context and NCCL ({gib(outside)} GiB) are there from the"
        " start; what the allocator holds is added at the peak, where it decides."
    )
    if axis.full_bytes < axis.capacity_bytes:
        note += f" The capacity, {gib(axis.capacity_bytes)} GiB, lies above this picture."
    else:
        note += f" The line across is the capacity, {gib(axis.capacity_bytes)} GiB."
    table = Table(
        "Live tensors (allocated) at the highest moment of each phase",
        ("Phase", "GiB", "highest during"),
        tuple((i.name, gib(i.allocated_bytes), i.operation) for i in rank.instants),
        right=(1,),
    )
    whole = any(instant.name in AROUND for instant in rank.instants)
    title = "Memory from loading to saving" if whole else "Memory over a step"
    title = "Memory while it serves" if plan.framework == "inference" else title
    chart = Chart(f"{title}, GiB: {told}", bars, axis, upright=True)
    return Section("step", title, (chart, Prose(note), table))


def host(plan: PlanResult, estimate: Estimate) -> Section | None:
    """What the processes of a node hold in its memory, from loading to saving, against what it has."""
    if not estimate.host_moments:
        return None
    rows = []
    capacity = plan.host_capacity_bytes
    for moment in estimate.host_moments:
        parts = ", ".join(f"{words(name)} {gib(count)}" for name, count in moment.components)
        rows.append((moment.name, gib(moment.bytes), moment.operation, parts))
    title = "Host memory of one node at the highest moment of each phase"
    table = Table(title, ("Phase", "GiB", "while", "of which"), tuple(rows), right=(1,), optional=(3,))
    if capacity is None:
        note = "Host memory is not checked: the plan does not state hardware.host_memory_gib."
        return Section("host", "Memory of a node", (table, Prose(note)))
    axis = Scale(max(capacity, estimate.host_bytes_per_node), capacity)
    bars = tuple(host_bar(moment, capacity) for moment in estimate.host_moments)
    told = ", ".join(f"{bar.label} {bar.figure}" for bar in bars)
    chart = Chart(f"GiB of the {gib(capacity)} GiB of a node: {told}", bars, axis)
    note = f"A node has {gib(capacity)} GiB, which is where the line stands."
    return Section("host", "Memory of a node", (chart, Prose(note), table))


def host_bar(moment: HostMoment, capacity: int) -> Bar:
    """The host memory that a node needs at one moment, as a bar. ``capacity``: the node's memory in bytes."""
    slack = capacity - moment.bytes
    note = f"{percent(moment.bytes / capacity)} of it, {gib(abs(slack))} {'missing' if slack < 0 else 'left'}"
    components: dict[str, int] = dict(moment.components)
    return Bar(label=moment.name, segments=segments(components), figure=gib(moment.bytes), note=note)


def moments(rank: RankEstimate, estimate: Estimate) -> tuple[Bar, ...]:
    """One bar per instant; that of the peak is the estimate's own."""
    outside = estimate.components_bytes.get("context_and_nccl", 0)
    top = rank.peak
    bars = []
    for instant in rank.instants:
        held = {**instant.components_bytes, "context_and_nccl": outside}
        found = segments(estimate.parts_bytes if instant is top else held)
        bars.append(Bar(instant.name, found, gib(sum(each.bytes for each in found if each.key != CACHE))))
    return tuple(bars)


def ranks(plan: PlanResult, estimate: Estimate) -> Section | None:
    """A bar for every pipeline rank."""
    if plan.dossier is None or len(plan.dossier.ranks) < 2:
        return None
    parameters = {rank.pipeline_rank: rank.parameters for rank in estimate.ranks}
    bars = tuple(
        Bar(
            label=f"rank {rank.pipeline_rank}",
            segments=segments(rank.components_bytes),
            figure=gib(rank.needed_bytes),
            note=f"peak in {rank.instant}, {parameters.get(rank.pipeline_rank, 0):,} parameters",
        )
        for rank in plan.dossier.ranks
    )
    told = ", ".join(f"{bar.label} {bar.figure}" for bar in bars)
    chart = Chart(f"GiB on each pipeline rank: {told}", bars, scale(plan, *(bar.bytes for bar in bars)))
    note = "Every pipeline rank at its own peak, in GiB; each stands for the worst of its data and tensor peers."
    return Section("ranks", "Every rank", (Prose(note), chart))


def tensors(plan: PlanResult, estimate: Estimate) -> Section | None:
    """The largest live tensors at the peak."""
    groups = estimate.largest[:LARGEST]
    if not groups:
        return None
    table = Table(
        "Equal tensors stand on one line",
        ("Tensor", "GiB", "count", "shape", "component"),
        tuple((g.name, gib(g.bytes), f"{g.copies:,}", g.shape, words(g.component)) for g in groups),
        right=(1, 2),
        keys=tuple(g.component for g in groups),
        optional=(3, 4),
        code=(0, 3),
    )
    return Section("tensors", "Largest live tensors at the peak", (table,))
