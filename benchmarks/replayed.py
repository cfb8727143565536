"""Steps that the allocator is replayed over: the traced ones, and those of ``data/allocator_plans.json``."""

from __future__ import annotations

from typing import Any

from benchmarks import traced
from benchmarks.cases import Case, load


def lengths() -> dict[str, tuple[float, ...]]:
    """Of steps whose sequences differ in length, the lengths of a run, as shares of the longest."""
    return {r["id"]: tuple(r["lengths"]) for r in load("allocator_plans.json")["steps"] if "lengths" in r}


def held_out() -> set[str]:
    """Ids of steps that no interval is made from: they are held against it alone."""
    return {r["id"] for r in load("allocator_plans.json")["steps"] if "held_out" in r}


def steps() -> dict[str, Case]:
    """The step of each id. Of models with tied embeddings, which were traced twice, the later record counts."""
    found = {case.id: case for case in traced.cases() if isinstance(case, Case)}
    found.update({record["id"]: _case(record) for record in load("allocator_plans.json")["steps"]})
    return found


def _case(record: dict[str, Any]) -> Case:
    return Case(
        id=record["id"],
        group="allocator",
        plan={"memcheck": 1, "name": record["id"], **record["plan"]},
        truth_bytes=0,
        metric="allocated",
        source="traced for the replay alone",
    )
