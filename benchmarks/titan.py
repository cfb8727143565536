"""Steps of torchtitan's own models, parallelism, recompute and losses, traced: every moment on every pipeline rank.

python -m benchmarks.titan [ID...]     # trace the plans of ``data/torchtitan.json`` again, or some of them

Needs the extra ``verify`` and torchtitan's commit b5bcd76c6 on the path. Its pipelines are split, scheduled and run by
its own code and torch's; sizes are the plan's, so that heads, widths and layers can be odd.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from benchmarks.cases import HERE, load

FILE = os.path.join(HERE, "data", "torchtitan.json")


def records() -> list[dict[str, Any]]:
    """Every step: its id, its plan, and per pipeline rank the traced bytes of each instant."""
    found: list[dict[str, Any]] = load("torchtitan.json")["steps"]
    return found


def traced(plan: dict[str, Any]) -> dict[str, dict[str, int]]:
    """What torchtitan's step of a plan takes."""
    from benchmarks.fuzz import moments, trace

    _, comparisons = trace(plan)
    return {
        str(each.observed.pipeline_rank): {name: seen for name, (_, seen) in moments(each).items()}
        for each in comparisons
    }


def main(wanted: list[str]) -> int:
    """Trace, and write what was seen."""
    steps = records()
    for record in steps:
        if not wanted or record["id"] in wanted:
            record["ranks"] = traced(record["plan"])
            print(record["id"], record["ranks"], flush=True)
    with open(FILE, "w", encoding="utf-8") as file:
        file.write('{"steps": [\n' + ",\n".join(json.dumps(step) for step in steps) + "\n]}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
