"""Where the memory goes, and what the answer depends on: the interval, assumptions, formulas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memcheck.accounts.estimate import CACHE, PARTS, Estimate, Formula, HostMoment, RankEstimate, TensorGroup
from memcheck.edge.screen import between, gib, percent, plural, value, words
from memcheck.memory.overhead_terms import CACHE as CACHE_TERM
from memcheck.report.story import Prose
from memcheck.report.story.blocks import (
    Bar,
    Chart,
    ComponentFormula,
    Fact,
    Facts,
    Formulas,
    Ledger,
    LedgerRow,
    Scale,
    Section,
    Segment,
    Table,
)
from memcheck.report.story.summary import gpu_tone
from memcheck.report.verdict import host_decides, short_of_host
from memcheck.rules.result import PlanResult

AROUND = ("load", "save")
"""Instants before and after the steps."""
LARGEST = 10
"""The most tensor groups that a table shows."""
CLOSE_UP = 0.5
"""A step that needs less than this share of the capacity is drawn on an axis of its own."""
CACHE_ROW = "cache, given back"
NAMED_CACHE_BYTES = 2**30
"""Cache from which on a reader should know that the step does not need it."""


def segments(components: Mapping[str, int]) -> tuple[Segment, ...]:
    """A bar's stretches, in the order of all reports."""
    return tuple(Segment(name, components[name]) for name in PARTS if components.get(name, 0) > 0)


def scale(plan: PlanResult, *needs: int) -> Scale:
    """From nothing to the capacity, or as far as the longest bar."""
    capacity = plan.estimate.capacity_bytes if plan.estimate else 0
    limit = int(capacity * plan.fail_above) if plan.fail_above < 1 else 0
    if plan.estimate is not None and plan.estimate.engine is not None:
        limit = int(capacity * (plan.estimate.engine.settings.share or 0))  # what the engine may take
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
    return Chart(id="node", title=title, bars=(bar,), scale=axis, capacity_name="memory of a node")


def picture(plan: PlanResult, estimate: Estimate) -> Chart:
    """What the fullest GPU holds at its peak against what it has; the allocator's cache is a tail of it."""
    low, high = estimate.needed_interval_bytes
    share = percent(estimate.utilization)
    bar = Bar("", segments(estimate.parts_bytes), f"{gib(estimate.needed_bytes)} GiB")
    parts = ", ".join(f"{words(each.key)} {gib(each.bytes)}" for each in bar.segments)
    title = f"{gib(estimate.needed_bytes)} GiB, {share} of {gib(estimate.capacity_bytes)} GiB: {parts}"
    reach = scale(plan, estimate.device_bytes, high)
    name = "capacity of a GPU" if short_of_host(plan) else "capacity"
    return Chart(id="gpu", title=title, bars=(bar,), scale=reach, interval_bytes=(low, high), capacity_name=name)


def components(plan: PlanResult, estimate: Estimate) -> Section:
    """The ledger of the components' memory."""
    note = cache_note(estimate)
    found = ledger(plan, estimate)
    return Section("memory", "Where the memory goes", (found, Prose(note)) if note else (found,))


def ledger(plan: PlanResult, estimate: Estimate) -> Ledger:
    """Every component that holds memory at the peak, the need, the capacity of the GPU, and what is left or missing.

    The allocator's cache is no part of the need.
    """
    return Ledger(
        title="memory of one GPU",
        caption=f"One GPU at the peak: {peak(estimate)}",
        share_head="of capacity",
        parts=tuple(LedgerRow(words(each.key), each.bytes, each.key) for each in segments(estimate.needed_parts_bytes)),
        needed=LedgerRow("device memory needed", estimate.needed_bytes),
        capacity=LedgerRow(f"capacity of {plan.gpu}" if plan.gpu else "capacity", estimate.capacity_bytes),
        cache=LedgerRow(CACHE_ROW, estimate.cache_bytes, CACHE) if estimate.cache_bytes else None,
        tone=gpu_tone(plan, estimate),
        note=cache_note(estimate),
    )


def host_ledger(plan: PlanResult, moment: HostMoment | None = None) -> Ledger | None:
    """The memory of a node at its fullest moment, or at another ``moment``; None where the plan does not state it."""
    moment = moment or (plan.estimate.host_moment if plan.estimate is not None else None)
    capacity = plan.host_capacity_bytes
    if moment is None or capacity is None:
        return None
    parts = sorted(moment.components, key=lambda item: -item[1])
    return Ledger(
        title=f"host memory in {moment.name}",
        caption=f"{moment.name}: {moment.operation}",
        share_head="of the node",
        parts=tuple(LedgerRow(words(name), count, name) for name, count in parts),
        needed=LedgerRow("host memory needed", moment.bytes),
        capacity=LedgerRow("memory of a node", capacity),
        tone="good" if moment.bytes <= capacity else "bad",
        note=f"{moment.name}: {moment.operation}",
    )


def peak(estimate: Estimate) -> str:
    """When and where memory is highest, in words."""
    where = f" on pipeline rank {estimate.pipeline_rank} of {len(estimate.ranks)}" if len(estimate.ranks) > 1 else ""
    during = f", during {estimate.operation}" if estimate.operation and estimate.operation != estimate.instant else ""
    return f"{estimate.instant}{where}{during}"


def interval(ends: tuple[int, int]) -> str:
    """The two ends of a 95 % interval, in bytes, as a text in GiB: ``between 56.1 and 57.9 GiB (95%)``."""
    return f"{between(ends)} GiB (95%)"


def cache_note(estimate: Estimate) -> str:
    """One sentence on the allocator's cache; empty where the cache is below :data:`NAMED_CACHE_BYTES`."""
    if estimate.cache_bytes < NAMED_CACHE_BYTES:
        return ""
    return (
        f"Cache: {gib(estimate.cache_bytes)} GiB that PyTorch's allocator keeps while there is room and gives back"
        f" before an allocation fails; with it, nvidia-smi shows about {gib(estimate.device_bytes)} GiB."
    )


def formula_head(item: Formula) -> tuple[str, str]:
    """The component of a formula, as a key and in words. The cache is not part of the need, and so apart."""
    return (CACHE, CACHE_ROW) if item.formula == CACHE_TERM else (item.component, words(item.component))


def share(count: int, capacity: int) -> str:
    """Bytes as a percentage of the capacity; empty without one."""
    return percent(count / capacity) if capacity else ""


def step(plan: PlanResult, estimate: Estimate) -> Section | None:
    """Memory from one instant of the step to the next, on the worst rank."""
    rank = worst_rank(estimate)
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
    chart = Chart(id="step-chart", title=f"{title}, GiB: {told}", bars=bars, scale=axis, upright=True)
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
    chart = Chart(id="host-chart", title=f"GiB of the {gib(capacity)} GiB of a node: {told}", bars=bars, scale=axis)
    note = f"The line is the {gib(capacity)} GiB of a node."
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
    chart = Chart(
        id="ranks-chart",
        title=f"GiB on each pipeline rank: {told}",
        bars=bars,
        scale=scale(plan, *(bar.bytes for bar in bars)),
    )
    note = "Every pipeline rank at its own peak, in GiB; each is the worst of its data and tensor peers."
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


def worst_rank(estimate: Estimate) -> RankEstimate | None:
    """The pipeline rank of the peak; None where the ranks do not say."""
    return next((rank for rank in estimate.ranks if rank.pipeline_rank == estimate.pipeline_rank), None)


def timeline(estimate: Estimate) -> Chart | None:
    """The allocated bytes of the worst rank at every instant of the step."""
    rank = worst_rank(estimate)
    if rank is None:
        return None
    suffix = f", pipeline rank {rank.pipeline_rank}" if len(estimate.ranks) > 1 else ""
    rows = [(each.name, each.allocated_bytes, each.operation) for each in rank.instants]
    return _allocated("instants", f"allocated at each instant of a step{suffix} (GiB)", rows)


def rank_peaks(estimate: Estimate) -> Chart | None:
    """The allocated bytes of every pipeline rank at its peak; None for a single rank."""
    if len(estimate.ranks) < 2:
        return None
    rows = [
        (f"rank {r.pipeline_rank}", r.peak.allocated_bytes, f"{r.peak.name}, {r.parameters:,} parameters")
        for r in estimate.ranks
    ]
    return _allocated("rank-peaks", "allocated peak of each pipeline rank (GiB)", rows)


def _allocated(id: str, title: str, rows: list[tuple[str, int, str]]) -> Chart:
    bars = tuple(
        Bar(label=name, segments=(Segment("", count),), figure=gib(count), note=note) for name, count, note in rows
    )
    return Chart(id=id, title=title, bars=bars, scale=Scale(max(1, *(bar.bytes for bar in bars)), 0))


def largest(groups: Sequence[TensorGroup], title: str = "largest live tensors at the peak (GiB)") -> Table | None:
    """The largest live tensors: size, count, name, shape, component; None where no tensor is known."""
    rows = tuple(
        (gib(group.bytes), f"{group.copies:,} x", group.name, group.shape, words(group.component))
        for group in groups[:FEW]
    )
    return Table(title, (), rows, right=(0, 1), code=(2,), optional=(4,), flow="start") if rows else None


FEW = 5
"""Tensor groups of a short list."""


def host_fact(estimate: Estimate) -> Facts:
    """The memory of a node that the processes need, when, and for what."""
    parts = ", ".join(f"{words(name)} {gib(count)}" for name, count in estimate.host_components)
    moment = estimate.host_moment
    when = f" in {moment.name}, {moment.operation}" if moment is not None else ""
    text = f"{gib(estimate.host_bytes_per_node)} GiB of host memory per node{when}: {parts}"
    return Facts((Fact("host", text),))


def certainty(plan: PlanResult, estimate: Estimate) -> Section:
    """The interval and how it was measured; the quantities to compare with."""
    text = (
        f"What is needed lies {between(estimate.needed_interval_bytes)} GiB (95% interval). These are the largest"
        " errors that the prediction was seen to make, with what the allocator was seen to be unable to return. The"
        f" verdict goes by it. What is seen, with the allocator's cache, lies {between(estimate.interval_bytes)} GiB."
    )
    if plan.dossier is not None:
        text += (
            f" They were taken on plans of this kind ({plan.dossier.basis}; at least"
            f" {plural(plan.dossier.cases, 'case')}), against traced PyTorch steps and measured runs: docs/trust.md."
        )
    if plan.settled_by:
        text += f" To settle whether the plan fits: {plan.settled_by}."
    if plan.rests_on:
        rests = (
            f"{each.key}: {value(each.value)} (it would be {percent(each.utilization)} with {value(each.other)})"
            for each in plan.rests_on
        )
        text += f" The figure of {percent(estimate.utilization)} assumes {', '.join(rests)}."
    rows = [
        ("allocated", gib(estimate.allocated_bytes), "torch.cuda.max_memory_allocated()"),
        ("needed", gib(estimate.needed_bytes), "the smallest GPU on which the step runs"),
        ("reserved, cache included", gib(estimate.reserved_bytes), "torch.cuda.max_memory_reserved()"),
        ("seen, cache included", gib(estimate.device_bytes), "nvidia-smi"),
        ("capacity", gib(estimate.capacity_bytes), "torch.cuda.mem_get_info()"),
    ]
    if estimate.host_bytes_per_node:
        rows.append(("host memory of a node", gib(estimate.host_bytes_per_node), _host_words(estimate)))
    table = Table(
        "Predicted, and what shows the same on a machine", ("Quantity", "GiB", "compare with"), tuple(rows), right=(1,)
    )
    return Section("certainty", "How sure this is", (Prose(text), table))


def assumptions(plan: PlanResult) -> Section | None:
    """Every value that was used and not stated."""
    if not plan.assumptions:
        return None
    table = Table(
        "Used because the plan does not say",
        ("Key", "value", "why"),
        tuple((item.key, value(item.value), item.why) for item in plan.assumptions),
        code=(0, 1),
    )
    return Section("assumptions", "Assumptions", (table,))


def formulas(estimate: Estimate) -> Section | None:
    """The arithmetic of every component at the peak."""
    found = arithmetic(estimate)
    return None if found is None else Section("formulas", "Formulas and their sources", (found,), folded=True)


def arithmetic(estimate: Estimate) -> Formulas | None:
    """Every formula with its numbers, its result and its source; None where formulas were not asked for."""
    found = tuple(
        ComponentFormula(
            key=key,
            name=name,
            figure=f"{gib(item.bytes)} GiB ({item.bytes:,} bytes)",
            lines=(item.formula, f"= {item.numbers}"),
            source=item.source,
        )
        for item in estimate.formulas
        for key, name in (formula_head(item),)
    )
    return Formulas("formulas", found) if found else None


def totals(plan: PlanResult, estimate: Estimate) -> Facts:
    """The quantities that one compares with torch and nvidia-smi, and what the answer assumes."""
    total = (
        f"allocated {gib(estimate.allocated_bytes)}, needed {gib(estimate.needed_bytes)} GiB,"
        f" {interval(estimate.needed_interval_bytes)}"
    )
    seen = (
        f"reserved {gib(estimate.reserved_bytes)}, nvidia-smi {gib(estimate.device_bytes)} GiB with the cache,"
        f" {interval(estimate.interval_bytes)}"
    )
    rows = [Fact("peak", peak(estimate)), Fact("total", total), Fact("seen", seen)]
    if plan.settled_by:
        rows.append(Fact("uncertain", f"to settle it: {plan.settled_by}"))
    if plan.rests_on:
        grounds = (
            f"{each.key}: {value(each.value)} (with {value(each.other)}: {percent(each.utilization)})"
            for each in plan.rests_on
        )
        rows.append(Fact("assumes", "; ".join(grounds)))
    if estimate.host_bytes_per_node and plan.host_capacity_bytes is None:
        rows += host_fact(estimate).rows
    return Facts(tuple(rows))


def assumed(plan: PlanResult) -> Table | None:
    """Every value that was used and not stated, a key with two reasons once; None where there is none."""
    whys: dict[tuple[str, str], str] = {}
    for each in plan.assumptions:
        named = each.key, value(each.value)
        whys[named] = f"{whys[named]}; {each.why}" if named in whys else each.why
    rows = tuple((key, item, why) for (key, item), why in whys.items())
    return Table("assumed, because the plan does not say", (), rows, flow="wrap") if rows else None


def assumed_by_reason(plan: PlanResult) -> Facts | None:
    """The assumed values grouped by their reasons, in as few lines as possible."""
    reasons: dict[str, list[str]] = {}
    for item in plan.assumptions:
        reasons.setdefault(item.why, []).append(f"{item.key}: {value(item.value)}")
    if not reasons:
        return None
    parts = [f"{', '.join(items)} ({why})" if why else ", ".join(items) for why, items in reasons.items()]
    return Facts((Fact("assumed", "; ".join(parts), "dim"),))


def _host_words(estimate: Estimate) -> str:
    """When the memory of a node is fullest."""
    moment = estimate.host_moment
    return f"{moment.name}: {moment.operation}" if moment is not None else ""
