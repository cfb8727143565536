"""Steps through other libraries' layers, each recorded with its plan: bitsandbytes' (``data/base.json``), Liger's."""

from __future__ import annotations

from benchmarks.cases import Case, load

GROUPS = {
    "base.json": "quantised bases, traced",
    "liger.json": "Liger's kernels, traced",
    "torchtune.json": "torchtune's models, traced",
    "nanotron.json": "nanotron's models, traced",
}


def cases() -> list[Case]:
    """Every record with its plan, against the highest of its instants."""
    return [case for name, group in GROUPS.items() for case in _cases(name, group)]


def _cases(name: str, group: str) -> list[Case]:
    data = load(name)
    found = []
    for record in data["cases"]:
        instants = record["instants_bytes"]
        phase = max(instants, key=instants.__getitem__)
        found.append(
            Case(
                id=record["id"],
                group=group,
                plan={**record["plan"], "name": record["id"]},
                truth_bytes=instants[phase],
                metric="allocated",
                phase=phase,
                small=True,
                source=data["source"],
            )
        )
    return found
