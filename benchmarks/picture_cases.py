"""Steps on pictures on several GPUs (``data/pictures.json``), each with its plan: what ``memcheck verify`` saw.

python -m benchmarks.picture_cases --keep FILE...   # add what ``benchmarks.fuzz --out`` wrote
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from benchmarks.cases import HERE, Case, load

FILE = os.path.join(HERE, "data", "pictures.json")
GROUP = "pictures on several GPUs, traced"
SOURCE = "traces of torch 2.13, transformers 5.24, peft 0.21"


def records() -> list[dict[str, Any]]:
    """Every kept step: its plan, whose model is a name in ``models``, and the traced bytes of each instant."""
    data = load("pictures.json")
    models = data["models"]
    return [
        {**step, "plan": {**step["plan"], "model": {"architecture": models[step["plan"]["model"]]}}}
        for step in data["steps"]
    ]


def cases() -> list[Case]:
    """The peak of each step."""
    found = []
    for record in records():
        instants = record["instants_bytes"]
        phase = max(instants, key=instants.__getitem__)
        found.append(
            Case(
                id=record["id"],
                group=GROUP,
                plan=record["plan"],
                truth_bytes=instants[phase],
                metric="allocated",
                phase=phase,
                source=SOURCE,
            )
        )
    return found


def keep(paths: list[str]) -> None:
    """Add the traced plans of some runs, and replace those that were traced before."""
    data = load("pictures.json") if os.path.exists(FILE) else {"source": SOURCE, "models": {}, "steps": []}
    steps = {step["id"]: step for step in data["steps"]}
    for path in paths:
        with open(path, encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        for row in rows:
            if "ranks" not in row:
                continue
            name, plan = row["id"].partition(".")[0], row["plan"]
            data["models"][name] = plan["model"]["architecture"]
            instants = {instant: seen for instant, (_, seen) in row["ranks"][0]["instants"].items()}
            steps[row["id"]] = {"id": row["id"], "plan": {**plan, "model": name}, "instants_bytes": instants}
    models = ",\n".join(f"{json.dumps(k)}: {json.dumps(data['models'][k])}" for k in sorted(data["models"]))
    lines = ",\n".join(json.dumps(steps[name]) for name in sorted(steps))
    with open(FILE, "w", encoding="utf-8") as file:
        file.write(f'{{"source": {json.dumps(SOURCE)},\n"models": {{\n{models}\n}},\n"steps": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    if "--keep" not in sys.argv:
        sys.exit(__doc__)
    keep([a for a in sys.argv[1:] if not a.startswith("-")])
