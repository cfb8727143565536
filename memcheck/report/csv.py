"""A table for spreadsheets and data frames: a row per plan with its figures, a row per finding.

What a plan's figures are made of, as rows of the table for spreadsheets: the content of the HTML report.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from memcheck.accounts.estimate import COMPONENTS, Estimate
from memcheck.edge.screen import Screen, clean, value, without_commands
from memcheck.plan.finding import Finding
from memcheck.report.story.remedies import all_remedies, change_lines, price, step, verdict_on
from memcheck.report.verdict import verdict
from memcheck.rules.result import PlanResult, Report

IDENTITY = ("kind", "path", "document", "plan", "status")
PLACE = ("line", "column", "end_line", "end_column")
FINDING = (*PLACE, "severity", "code", "name", "message", "help", "pointer")
JOB = ("model", "gpu", "gpus", "framework")
FIGURES = (
    "utilization",
    "device_bytes",
    "capacity_bytes",
    "interval_low_bytes",
    "interval_high_bytes",
    "needed_bytes",
    "needed_low_bytes",
    "needed_high_bytes",
    "cache_bytes",
    "allocated_bytes",
    "reserved_bytes",
    "instant",
    "pipeline_rank",
    "parameters",
    "trainable_parameters",
    "host_bytes_per_node",
    "host_capacity_bytes",
    "verdict",
)
COLUMNS = (*IDENTITY, *JOB, *FIGURES, *(f"{name}_bytes" for name in COMPONENTS), *FINDING)

_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20", "::")
"""What spreadsheets take for a formula, in the full width that some of them accept as well, and CI runners for a
command."""


def render(report: Report, screen: Screen | None = None, *, checked: bool = True) -> str:
    """The rows under one line of names; the screen plays no part.

    Not ``checked``, what ``estimate`` has to say: in place of the findings what the figures are made of.
    """
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS if checked else (*COLUMNS, *PARTS), restval="", lineterminator="\n")
    writer.writeheader()
    for plan in report.plans:
        rows = [plan_row(plan, checked=checked)]
        if checked or plan.estimate is None:
            rows += [finding_row(plan, finding) for finding in plan.findings]
        else:
            rows += [{**owner(kind, plan), **row} for kind, row in parts(plan, plan.estimate)]
        for row in rows:
            writer.writerow({key: cell(value) for key, value in row.items()})
    for item in report.unreadable:
        row = {"kind": "unreadable", "path": item.path, "message": item.message}
        writer.writerow({key: cell(value) for key, value in row.items()})
    return out.getvalue()


def plan_row(plan: PlanResult, *, checked: bool = True) -> dict[str, object]:
    """A plan and what it needs."""
    job = {"model": plan.model, "gpu": plan.gpu, "gpus": plan.gpus or "", "framework": plan.framework}
    row = {**owner("plan", plan), **job}
    row["verdict"] = verdict(plan, checked=checked).word
    if plan.estimate is None:
        return row
    host = {} if plan.host_capacity_bytes is None else {"host_capacity_bytes": plan.host_capacity_bytes}
    return {**row, **figures(plan.estimate), **host}


def figures(estimate: Estimate) -> dict[str, object]:
    """The numbers of an estimate; bytes are whole numbers, the utilization is a fraction."""
    low, high = estimate.interval_bytes
    stated = estimate._asdict()
    return {
        **{name: stated[name] for name in FIGURES if name in stated},
        "utilization": round(estimate.utilization, 6),
        "interval_low_bytes": low,
        "interval_high_bytes": high,
        "needed_bytes": estimate.needed_bytes,
        "needed_low_bytes": estimate.needed_interval_bytes[0],
        "needed_high_bytes": estimate.needed_interval_bytes[1],
        **{f"{name}_bytes": estimate.components_bytes.get(name, 0) for name in COMPONENTS},
    }


def finding_row(plan: PlanResult, finding: Finding) -> dict[str, object]:
    """A finding and where it is, which may be a file that the plan extends."""
    return {
        **owner("finding", plan),
        "path": finding.location.path,
        **finding.location.span._asdict(),
        "severity": finding.severity,
        "code": finding.code,
        "name": finding.name,
        "message": finding.message,
        "help": finding.help,
        "pointer": finding.pointer,
    }


def owner(kind: str, plan: PlanResult) -> dict[str, object]:
    """The cells that say which plan a row is about."""
    status = "accepted" if plan.accepted else plan.status
    return {"kind": kind, "path": plan.path, "document": plan.document, "plan": plan.name, "status": status}


def cell(value: object) -> object:
    """Text on one line; what a spreadsheet would run as a formula is marked as text with an apostrophe."""
    if not isinstance(value, str):
        return value
    text = " ".join(clean(value).split())
    text = f"'{text}" if text.startswith(_FORMULA) else text
    return without_commands(text)


PARTS = ("item", "value", "detail", "count", "item_bytes", "share")
"""``item`` is what the row is about; the bytes are in a column of their own, so that sums over plans stay right."""

Row = dict[str, object]


def parts(plan: PlanResult, estimate: Estimate) -> Iterator[tuple[str, Row]]:
    """Kind and cells of every row."""
    for row in instants(estimate):
        yield "instant", row
    for row in ranks(plan):
        yield "rank", row
    for moment in estimate.host_moments:
        for name, count in moment.components:
            yield "host", _row(moment.name, name, moment.operation, count)
    for group in estimate.largest:
        yield "tensor", _row(group.name, group.shape, group.component, group.bytes, count=group.copies)
    for remedy in all_remedies(plan):
        each = step(plan, remedy)
        paid = "; ".join(filter(None, (each.asks, price(each), each.paid)))
        cells = _row(remedy.title, "; ".join(change_lines(each)), paid, remedy.needed_bytes)
        yield "remedy", {**cells, "share": round(remedy.utilization, 6)}
    for row in gpus(plan):
        yield "gpu", row
    if plan.dossier is not None:
        yield "interval", {"item": plan.dossier.basis, "count": plan.dossier.cases}
    for item in plan.assumptions:
        yield "assumption", {"item": item.key, "value": value(item.value), "detail": item.why}
    for formula in estimate.formulas:
        source = f"{formula.numbers}; {formula.source}" if formula.source else formula.numbers
        yield "formula", _row(formula.component, formula.formula, source, formula.bytes)


def _row(item: str, value: str, detail: str, n_bytes: int, count: int | str = "") -> Row:
    return {"item": item, "value": value, "detail": detail, "count": count, "item_bytes": n_bytes}


def instants(estimate: Estimate) -> Iterator[Row]:
    """The components of every instant on the worst rank, at its highest moment."""
    rank = next((r for r in estimate.ranks if r.pipeline_rank == estimate.pipeline_rank), None)
    for instant in rank.instants if rank is not None else ():
        for name in COMPONENTS:
            if instant.components_bytes.get(name):
                yield _row(instant.name, name, instant.operation, instant.components_bytes[name])


def ranks(plan: PlanResult) -> Iterator[Row]:
    """The components of every pipeline rank at its own peak."""
    for rank in plan.dossier.ranks if plan.dossier is not None else ():
        for name in COMPONENTS:
            if rank.components_bytes.get(name):
                yield _row(str(rank.pipeline_rank), name, rank.instant, rank.components_bytes[name])


def gpus(plan: PlanResult) -> Iterator[Row]:
    """The plan on its own GPU and on others."""
    for there in plan.dossier.gpus if plan.dossier is not None else ():
        if there.refused:
            yield {"item": there.gpu, "value": "Not possible", "detail": there.refused}
            continue
        verdict = verdict_on(plan, there, checked=False)
        speed = "" if there.relative_speed is None else f"{there.relative_speed:.2f} x the speed"
        cells = _row(there.gpu, verdict.word, speed, there.needed_bytes)
        yield {**cells, "share": round(there.utilization, 6)}
