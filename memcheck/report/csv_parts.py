"""What a plan's figures are made of, as rows of the table for spreadsheets: the content of the HTML report."""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.accounts.estimate import COMPONENTS, Estimate
from memcheck.edge.text import value
from memcheck.report.story.gpus import verdict_on
from memcheck.report.story.remedies import all_remedies, change_lines, price, step
from memcheck.result import PlanResult

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
        verdict = verdict_on(plan, there, judged=False)
        speed = "" if there.relative_speed is None else f"{there.relative_speed:.2f} x the speed"
        cells = _row(there.gpu, verdict.word, speed, there.needed_bytes)
        yield {**cells, "share": round(there.utilization, 6)}
