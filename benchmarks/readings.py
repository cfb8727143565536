"""Published readings by kind of training: how far predictions are off, and how many lie inside their interval.

Counted are rows whose source says all that the plan states, of ``allocated`` or ``reserved`` as they were read.
Readings of kinds that something is not known of yet are counted apart, so that no kind looks better than it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.cases import load
from benchmarks.outcomes import BEYOND, Verdict
from benchmarks.score import Row

BARS = {"full": 0.03, "LoRA": 0.05, "QLoRA and int8": 0.08, "preference": 0.08}
"""The median error that each kind is to have."""
LEAST = 5
"""Readings below which a median is reported without a bar."""


def kind_of(plan: Mapping[str, Any]) -> str:
    """The kind of a plan: by its objective first, then by how the base is held, then by what is trained."""
    training = plan.get("training", {})
    objective = training.get("objective", "sft")
    name = objective.get("name", "sft") if isinstance(objective, Mapping) else objective
    if name in ("dpo", "ipo", "kto", "orpo", "cpo", "simpo"):
        return "preference"
    if training.get("method") == "qlora" or "base" in training:
        return "QLoRA and int8"
    return "LoRA" if training.get("method") == "lora" or "lora" in training else "full"


def section(rows: Iterable[Row], apart: Sequence[tuple[str, Row]], verdicts: Iterable[Verdict]) -> list[str]:
    """The table, with a heading."""
    counted = [row for row in rows if row.case.published and not row.case.assumption and row.case.plan]
    left = [(kind_of(row.case.plan), row.error) for _, row in apart]
    left += [(kind_of(v.outcome.plan), error) for v in verdicts if (error := _error(v)) is not None]
    lines = [
        "",
        "## Readings by kind",
        "",
        "Published readings of *allocated* or *reserved*, as read, of rows that are fully stated. *Bar*: the median",
        "error that the kind is to have, from five on. *Apart*: readings of kinds that something is not known of yet.",
        "",
        "| kind | n | median error | bar | inside | low by more than 5 % | apart | their median error |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind, bar in BARS.items():
        here = [row for row in counted if kind_of(row.case.plan) == kind]
        elsewhere = [abs(error) for of, error in left if of == kind]
        lines.append(_line(kind, bar, here, elsewhere))
    return lines


def _error(verdict: Verdict) -> float | None:
    """What is predicted over what was read of a job of a kind apart, minus one: reserved bytes, or live ones where the
    source says nothing of reserved.
    """
    job = verdict.outcome
    found = verdict.reserved_bytes if job.reserved_bytes else verdict.allocated_bytes
    if not job.apart or job.assumption or not job.reading_bytes or found is None:
        return None
    return found / job.reading_bytes - 1


def _line(kind: str, bar: float, here: Sequence[Row], elsewhere: Sequence[float]) -> str:
    middle = f"{median(abs(row.error) for row in here):.2%}" if here else ""
    inside = f"{sum(row.inside for row in here)}/{len(here)}"
    low = sum(row.error < -0.05 for row in here)
    stated = f"{bar:.0%}" if len(here) >= LEAST else "reported only"
    others = f"{median(elsewhere):.2%}" if elsewhere else ""
    return f"| {kind} | {len(here)} | {middle} | {stated} | {inside} | {low} | {len(elsewhere)} | {others} |"


def wrong(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Jobs that died and pass, and jobs that ran and are said to be beyond the card."""
    return [v for v in verdicts if v.unsafe or (v.refused and v.reason == BEYOND)]


def named(verdicts: Iterable[Verdict]) -> list[str]:
    """The wrong verdicts, each with its tensor or with the fact that its source lacks (``data/wrong.json``)."""
    why = load("wrong.json")
    lines = ["", "## Wrong verdicts, each named", "", "| job | became of it | share of the card | what is missing |"]
    lines.append("|---|---|---|---|")
    for v in wrong(verdicts):
        became = f"died, passes{' with a warning' if v.warned else ''}" if v.outcome.died else "ran, beyond the card"
        share = f"{v.utilization:.1%}" if v.utilization is not None else ""
        lines.append(f"| `{v.outcome.id}` | {became} | {share} | {why.get(v.outcome.id) or v.outcome.assumption} |")
    return lines
