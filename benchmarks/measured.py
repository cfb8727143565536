"""Measured facts (``data/measured.json``) to cases."""

from __future__ import annotations

from typing import Any

from benchmarks.cases import Case, Unpriced, load

GOLDEN = "Megatron golden"


def cases() -> list[Case | Unpriced]:
    """Published rows that a plan can state, and the others with the reason."""
    facts = load("measured.json")
    found: list[Case | Unpriced] = [_case(record) for record in facts["cases"]]
    found.extend(Unpriced(r["id"], "published", r["reason"]) for r in facts["unpriced"])
    return found


def apart() -> list[tuple[str, Case]]:
    """Published rows of kinds that something is not known of yet: what, and the row. They calibrate nothing."""
    return [(record["apart"], _case(record)) for record in load("measured.json")["apart"]]


def _case(record: dict[str, Any]) -> Case:
    return Case(
        id=record["id"],
        group=record["group"],
        plan={"memcheck": 1, "name": record["id"], **record["plan"]},
        truth_bytes=record["truth_bytes"],
        metric=record["metric"],
        source=f"{record['source']}: {record['quote']}",
        pipeline_rank=record.get("pipeline_rank"),
        confidence=record["confidence"],
        note=record.get("note", ""),
        assumption=record.get("assumption", ""),
        published=True,
        widens=record.get("widens", True),  # False: rows shorter than the plan can say make the error
    )


def golden() -> tuple[list[tuple[Case, dict[str, Any], str]], list[Unpriced]]:
    """Megatron's functional tests: (case, facts, GPU), and those that cannot be priced."""
    facts = load("measured.json")
    found = []
    for record in facts["golden"]:
        for gpu, measured in record["measured"].items():
            case = Case(
                id=f"{record['case']}@{gpu}",
                group=GOLDEN,
                plan={},
                truth_bytes=measured["max_allocated"],
                metric="allocated",
                source=f"tests/functional_tests/test_cases/{record['case']}/golden_values_dev_dgx_{gpu}.json",
                family=record["case"].split("/")[0],
            )
            found.append((case, record, gpu))
    return found, [Unpriced(r["id"], GOLDEN, r["reason"]) for r in facts["golden_unpriced"]]
