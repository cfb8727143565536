"""Every family of the catalog under every framework: priced, or refused and why.

python -m benchmarks.coverage --write   # the table: COVERAGE.md
python -m benchmarks.coverage --check   # whether it is of today
"""

from __future__ import annotations

import os
import sys

from benchmarks.added import added
from benchmarks.cases import HERE
from benchmarks.page import write_or_check
from memcheck.catalog.names import find_model, model_names
from memcheck.families.registry import read_architecture
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.framework import Framework
from memcheck.memory.unmodelled import unpriced
from memcheck.models.types import Architecture

TABLE = os.path.join(HERE, "COVERAGE.md")


def families() -> dict[str, dict[str, Architecture]]:
    """The catalog's models by family and name; of families without one, the model that was added."""
    found: dict[str, dict[str, Architecture]] = {}
    for name in model_names():
        architecture = read_architecture(find_model(name).config)
        found.setdefault(architecture.model_type, {})[name] = architecture
    for kind, record in added().items():
        if kind not in found:
            found[kind] = {kind: read_architecture(record["config"])}
    return dict(sorted(found.items()))


def refusals(framework: Framework, models: dict[str, Architecture]) -> dict[str, tuple[str, ...]]:
    """The models that the framework has no figure for: the parts that nothing prices, or none for a family."""
    found: dict[str, tuple[str, ...]] = {}
    for name, architecture in models.items():
        if architecture.model_type not in framework.families.names:
            found[name] = ()
        elif parts := unpriced(framework.families, architecture):
            found[name] = parts
    return found


def cell(framework: Framework, models: dict[str, Architecture]) -> str:
    """What the table says of a family under a framework."""
    refused = refusals(framework, models)
    if not refused:
        return "priced"
    if all(not parts for parts in refused.values()):
        return "refused"
    return "priced, but for " + "; ".join(f"{name} ({', '.join(parts)})" for name, parts in refused.items())


def table() -> str:
    """The page."""
    lines = [
        "# Families and frameworks",
        "",
        "<!-- Written by `python -m benchmarks.coverage --write`; `--check` compares with what is declared today. -->",
        "",
        "What of the catalog has a figure under which framework (`families` in `memcheck/frameworks`). *refused*: the",
        "framework does not build the family, or memcheck has no forward pass of it there; a plan that asks for it",
        "fails with `MEM025`. Parts in brackets are those that keep a single model from being priced.",
        "",
        "| family | " + " | ".join(FRAMEWORKS) + " |",
        "|---" * (len(FRAMEWORKS) + 1) + "|",
    ]
    for family, models in families().items():
        lines.append(f"| {family} | " + " | ".join(cell(f, models) for f in FRAMEWORKS.values()) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(write_or_check(TABLE, table(), "python -m benchmarks.coverage --write", sys.argv[1:]))
