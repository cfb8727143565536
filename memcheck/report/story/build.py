"""Builds the story of a report: every plan with its sections, the index of several plans, and the whole as data."""

from __future__ import annotations

import re
from collections.abc import Mapping

from memcheck.accounts.estimate import CACHE, PARTS, Estimate
from memcheck.edge.json_text import dumps
from memcheck.edge.screen import Screen, between, gib, percent, plural
from memcheck.plan.finding import Edit
from memcheck.record import Record
from memcheck.report.forge import identified
from memcheck.report.json import edit
from memcheck.report.story import Fitting, Gauge, PlanHead, PlanSummary, Prose, findings, memory, remedies
from memcheck.report.story.blocks import (
    Bar,
    Cards,
    Chart,
    Comparison,
    Excerpt,
    Excerpts,
    Facts,
    Formulas,
    Grid,
    Item,
    Ledger,
    PlanFact,
    PlanStory,
    Remedies,
    Scale,
    Section,
    SourceLine,
    Story,
    Table,
    UnreadablePath,
)
from memcheck.report.story.findings import engine_section
from memcheck.report.story.findings import rows as engine_rows
from memcheck.report.story.summary import summary
from memcheck.report.verdict import host_decides, lead, pressure, verdict
from memcheck.rules.result import PlanResult, Report


def story(report: Report, *, checked: bool = True) -> Story:
    """The whole report; not ``checked``: figures without findings, but where findings are all there is."""
    count = len(report.plans)
    only = f" of {report.plans[0].name}" if count == 1 else ""
    said = summary(report) if checked else f"estimated {plural(count, 'plan')}"
    ids = ids_of(report)
    return Story(
        title=f"GPU memory{only}" if count == 1 else f"GPU memory of {plural(count, 'plan')}",
        summary=said,
        plans=tuple(
            plan_story(plan, ids, checked=checked or plan.estimate is None)._replace(page_link=report.page_link(plan))
            for plan in report.plans
        ),
        unreadable=tuple(UnreadablePath(item.path, item.message) for item in report.unreadable),
        version=report.version,
    )


def plan_story(plan: PlanResult, ids: Mapping[int, str], *, checked: bool) -> PlanStory:
    """The sections of the report on one plan. ``checked``: with findings and a verdict; else figures alone.

    ``ids``: ids of the findings, by the identity of each, and of the plan.
    """
    estimate = plan.estimate
    found: list[Section | None] = [findings.section(plan, ids)] if checked else []
    if estimate is not None:
        found = [
            engine_section(estimate) if estimate.engine is not None else None,
            memory.components(plan, estimate),
            memory.step(plan, estimate),
            memory.host(plan, estimate),
            remedies.section(plan, estimate),
            remedies.gpu_section(plan, checked=checked),
            memory.ranks(plan, estimate),
            memory.tensors(plan, estimate),
            *found,
            memory.certainty(plan, estimate),
        ]
    found += [memory.assumptions(plan), memory.formulas(estimate) if estimate is not None else None]
    document = f", document {plan.document}" if plan.document else ""
    return PlanStory(
        id=ids[id(plan)],
        name=plan.name,
        path=f"{plan.path}{document}",
        status=plan.status,
        verdict=verdict(plan, checked=checked),
        lead=lead(plan, checked=checked),
        advice=remedies.advice(plan),
        facts=facts(plan),
        pictures=memory.pictures(plan, estimate) if estimate is not None else (),
        used=used(plan),
        sections=tuple(section for section in found if section is not None),
    )


def used(plan: PlanResult) -> str:
    """How full the memory is that decides."""
    if plan.estimate is None:
        return ""
    return f"{percent(pressure(plan))} of host" if host_decides(plan) else percent(plan.estimate.utilization)


def facts(plan: PlanResult) -> tuple[PlanFact, ...]:
    """What runs where, and the figures that people ask for first."""
    estimate = plan.estimate
    where = f"{plan.gpus:,} × {plan.gpu}" if plan.gpus else plan.gpu
    rows = [("GPUs", where), ("Model", plan.model), ("Framework", plan.framework)]
    if estimate is not None:
        rows = [
            *(engine_rows(estimate.engine) if estimate.engine is not None else ()),
            ("Used of each GPU", percent(estimate.utilization)),
            ("95% interval", f"{between(estimate.needed_interval_bytes)} GiB"),
            ("Seen with the cache", f"{gib(estimate.device_bytes)} GiB" if memory.cache_note(estimate) else ""),
            *host_facts(plan, estimate),
            *rows,
            ("Parameters", counted(estimate.parameters)),
        ]
        if 0 < estimate.trainable_parameters != estimate.parameters:
            rows.append(("Trained", counted(estimate.trainable_parameters)))
    return tuple(PlanFact(label, text) for label, text in rows if text)


def host_facts(plan: PlanResult, estimate: Estimate) -> list[tuple[str, str]]:
    """What a node needs, where the plan says what it has."""
    if plan.host_capacity_bytes is None or not estimate.host_bytes_per_node:
        return []
    return [("Host memory of a node", f"{gib(estimate.host_bytes_per_node)} of {gib(plan.host_capacity_bytes)} GiB")]


def counted(parameters: int) -> str:
    """A number of parameters in words: ``8.03 billion``."""
    for size, name in ((10**12, "trillion"), (10**9, "billion"), (10**6, "million")):
        if parameters >= size:
            return f"{parameters / size:.2f} {name}"
    return f"{parameters:,}"


def ids_of(report: Report) -> dict[int, str]:
    """The id of every plan and every finding, by the identity of the record.

    A plan has its path and document, a finding its rule, plan and key, so that neither changes with a line number.
    """
    found = {}
    for plan in report.plans:
        name = re.sub(r"[^A-Za-z0-9]+", "-", plan.path.rpartition(".")[0] or plan.path).strip("-").lower()
        found[id(plan)] = f"{name or 'plan'}-{plan.document}" if plan.document else name or "plan"
    for _, finding, key in identified(report):
        found[id(finding)] = f"{finding.code.lower()}-{key[:12]}"
    return found


LONGEST = 2.0
"""The axis ends here, in times the capacity: one plan of 1,400 % would make specks of all others' bars."""
TROUBLE = ("bad", "warn", "note", "good")
CAPTION = "The memory that decides, at its fullest moment, as a share of the card's; the worst first"
INDEX_LINES = "The solid line is all that the card has, the dashed one the plan's limit."


class IndexEntry(Record):
    """One plan's line."""

    number: int
    """The plan's position in the report, from 1."""
    plan: PlanStory
    where: str
    """Model and GPUs."""
    bar: Bar | None
    """The plan's memory as a bar; None for a plan that was not estimated."""
    scale: Scale
    """Ends at the same share of the capacity in every line."""


class PlanIndex(Record):
    """All lines, and the components that their bars show, in the order of all reports."""

    entries: tuple[IndexEntry, ...]
    keys: tuple[str, ...]


def plan_index(story: Story) -> PlanIndex:
    """The plans of a report from the worst to the best; as they stand in the report where they are equally bad."""
    axis = max(1.0, *(min(LONGEST, share(each, cache=True)) for each in story.plans))
    entries = [_entry(each, number, axis) for number, each in enumerate(story.plans, start=1)]
    entries.sort(key=lambda entry: (TROUBLE.index(entry.plan.verdict.tone), -share(entry.plan)))
    shown = {segment.key for entry in entries if entry.bar is not None for segment in entry.bar.segments}
    return PlanIndex(tuple(entries), tuple(key for key in PARTS if key in shown))


def share(story: PlanStory, *, cache: bool = False) -> float:
    """What a plan needs in times the capacity, with or without the ``cache``; without an estimate more than any."""
    if not story.pictures:
        return float("inf")
    bar, scale = story.pictures[0].bars[0], story.pictures[0].scale
    return sum(segment.bytes for segment in bar.segments if cache or segment.key != CACHE) / max(
        1, scale.capacity_bytes
    )


def _entry(story: PlanStory, number: int, axis: float) -> IndexEntry:
    facts = dict(story.facts)
    where = ", ".join(filter(None, (facts.get("Model", ""), facts.get("GPUs", ""))))
    if not story.pictures:
        return IndexEntry(number=number, plan=story, where=where, bar=None, scale=Scale(1, 0))
    first = story.pictures[0]
    scale = first.scale._replace(full_bytes=max(1, int(first.scale.capacity_bytes * axis)))
    return IndexEntry(number=number, plan=story, where=where, bar=first.bars[0], scale=scale)


BLOCKS = {
    Cards: "cards",
    Chart: "chart",
    Comparison: "comparison",
    Excerpt: "excerpt",
    Excerpts: "excerpts",
    Facts: "facts",
    Fitting: "fitting",
    Formulas: "formulas",
    Gauge: "gauge",
    Grid: "grid",
    Item: "item",
    Ledger: "ledger",
    PlanHead: "plan-head",
    PlanSummary: "plan-summary",
    Prose: "prose",
    Remedies: "remedies",
    Table: "table",
}
"""The kind of every block."""
LONGEST_LINE = 2000
"""Characters of a source line; marks beyond them are left out with the rest of the line."""


def render(report: Report, screen: Screen | None = None, *, checked: bool = True) -> str:
    """The document; the screen plays no part. Not ``checked``: what ``estimate`` has to say."""
    return dumps(document(story(report, checked=checked)), indent=1) + "\n"


def document(told: Story) -> dict[str, object]:
    """A story as plain data."""
    found = {name: as_data(value) for name, value in told._asdict().items() if name != "version"}
    return {"story": 1, "memcheck": told.version, **found}


def as_data(value: object) -> object:
    """A record as a dict, a tuple as a list, and plain values as they are."""
    if isinstance(value, Edit):
        return edit(value)
    if isinstance(value, SourceLine):
        value = shortened(value)
    if isinstance(value, tuple):
        fields = getattr(value, "_fields", None)
        if fields is None:
            return [as_data(each) for each in value]
        kind = BLOCKS.get(type(value))
        named = {"block": kind} if kind else {}
        return {**named, **{name: as_data(each) for name, each in zip(fields, value, strict=True)}}
    if isinstance(value, dict):
        return {str(key): as_data(each) for key, each in value.items()}
    return [as_data(each) for each in value] if isinstance(value, list) else value


def shortened(line: SourceLine) -> SourceLine:
    """A source line of at most :data:`LONGEST_LINE` characters."""
    if line.text is None or len(line.text) <= LONGEST_LINE:
        return line
    kept = tuple(mark for mark in line.marks if mark.column <= LONGEST_LINE)
    marks = tuple(mark._replace(end_column=min(mark.end_column, LONGEST_LINE + 1)) for mark in kept)
    return line._replace(text=line.text[:LONGEST_LINE], marks=marks)
