"""Suggested plans re-checked by tracing: what ``memcheck verify`` says of plans that ``suggest`` has written.

    memcheck suggest PLAN --apply 1 && memcheck verify PLAN --format json > FOLDER/PLAN.json    # with memcheck[verify]
    python -m benchmarks.remedies_traced FOLDER

Reads the plan files and the answers of ``verify`` of a folder (``NAME.json``, or ``NAME.N.json`` of a run with
``--layers N``) and writes ``benchmarks/remedies_traced.md``. The plans are those of ``benchmarks/over_budget.py``.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import yaml

from benchmarks.over_budget import plans
from memcheck.edge.screen import gib, value

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "remedies_traced.md")


def changes(before: Any, after: Any, prefix: str = "") -> list[str]:
    """``key: value`` of every key whose value is not what it was."""
    found: list[str] = []
    for key, new in after.items():
        old = before.get(key) if isinstance(before, dict) else None
        if isinstance(new, dict) and isinstance(old, dict):
            found += changes(old, new, f"{prefix}{key}.")
        elif new != old:
            found.append(f"`{prefix}{key}: {value(new)}`")
    return found


def row(folder: str, file: str) -> str:
    """A line of the table."""
    name, _, layers = file.removesuffix(".json").partition(".")
    with open(os.path.join(folder, file), encoding="utf-8") as answer:
        told = json.load(answer)
    with open(os.path.join(folder, f"{name}.yaml"), encoding="utf-8") as plan:
        changed = changes(yaml.safe_load(plans()[name]), yaml.safe_load(plan))
    rank = max(told["ranks"], key=lambda each: abs(each["error"]))
    predicted, traced = rank["predicted"]["allocated_bytes"], rank["observed"]["allocated_bytes"]
    instead = "; ".join(f"{each['key']} as {each['instead']}" for each in told["replaced"])
    cells = [name, "<br>".join(changed), layers or "all", gib(predicted), gib(traced), f"{rank['error']:+.4%}", instead]
    return f"| {' | '.join(cells)} |"


def main(arguments: list[str]) -> int:
    """Write the page."""
    (folder,) = arguments
    files = sorted(f for f in os.listdir(folder) if f.endswith(".json") and os.path.getsize(os.path.join(folder, f)))
    with open(os.path.join(folder, files[0]), encoding="utf-8") as first:
        versions = json.load(first)["versions"]
    stack = ", ".join(f"{name} {version}" for name, version in versions.items() if name != "memcheck")
    lines = ["# Suggested plans, traced", "", "<!-- Written by python -m benchmarks.remedies_traced FOLDER -->", ""]
    lines += [
        f"{len(files)} plans that `memcheck suggest` has written, run on fake tensors by `memcheck verify`:",
        f"{stack}.",
        "Predicted and traced: `allocated` GiB at the peak of the worst rank. Layers: fewer of them, in prediction and",
        "run alike. Last column: what a trace on the CPU replaces, in prediction and run alike.",
        "",
    ]
    heads = ("plan", "changed", "layers", "predicted", "traced", "difference", "replaced")
    lines += [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *(row(folder, file) for file in files)]
    with open(PAGE, "w", encoding="utf-8") as page:
        page.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
