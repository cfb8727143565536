"""Traced steps of adapters over bitsandbytes' layers (``data/base.json``)."""

from __future__ import annotations

from benchmarks.cases import Case, load

GROUP = "quantised bases, traced"


def cases() -> list[Case]:
    """Every record with its plan, against the highest of its instants."""
    data = load("base.json")
    found = []
    for record in data["cases"]:
        instants = record["instants_bytes"]
        phase = max(instants, key=instants.__getitem__)
        found.append(
            Case(
                id=record["id"],
                group=GROUP,
                plan={**record["plan"], "name": record["id"]},
                truth_bytes=instants[phase],
                metric="allocated",
                phase=phase,
                widens=False,  # exact, and of small models
                source=data["source"],
            )
        )
    return found
