"""Plans that need more than their GPUs have: dense, mixtures, adapters, long context, serving; 1 to 2,048 GPUs.

A line each in ``data/over_budget.txt``, written out here as a plan file with comments, as people write them.
"""

from __future__ import annotations

import os
from typing import Any

import yaml

ROWS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "over_budget.txt")


def plans() -> dict[str, str]:
    """Name to the text of its file."""
    with open(ROWS, encoding="utf-8") as file:
        rows = [line.split(maxsplit=1) for line in file if not line.startswith("#")]
    return {name: _text(rest) for name, rest in rows}


def _text(row: str) -> str:
    model, gpu, nodes, gpus, rest = row.split(maxsplit=4)
    end = rest.index("}") + 1
    parallelism, (framework, keys) = yaml.safe_load(rest[:end]), rest[end:].split(maxsplit=1)
    section: dict[str, Any] = yaml.safe_load(keys)
    lines = ["memcheck: 1", f"model: {model}   # too large as it stands", "", "hardware:", f"  gpu: {gpu}"]
    lines += [f"  gpus_per_node: {gpus}", f"  nodes: {nodes}", ""]
    if parallelism:
        lines += ["parallelism:", *(f"  {key}: {value}   # as before" for key, value in parallelism.items()), ""]
    if framework == "serving":
        lines.append("inference:")
    else:
        lines += ["training:", f"  framework: {framework}   # ours"]
    for key, value in section.items():
        lines += [
            f"  {line}"
            for line in yaml.safe_dump(
                {key: value}, default_flow_style=None if isinstance(value, dict) else False
            ).splitlines()
        ]
    return "\n".join(lines) + "\n"
