"""The plans of a command line, each with the gate of its file: what `compare` and `sweep` start from."""

from __future__ import annotations

from memcheck.cli.gate import Gates
from memcheck.cli.guard import complain
from memcheck.cli.options import CheckOptions
from memcheck.config.discover import find_plans
from memcheck.config.find import Configurations
from memcheck.configs.documents import load_plans
from memcheck.errors import UsageError
from memcheck.result import Unreadable
from memcheck.what_if.compare import ComparedPlan


def subjects(paths: tuple[str, ...], config: str | None, verb: str) -> tuple[list[ComparedPlan], bool]:
    """Every plan of the paths, and whether all files could be read.

    Raises:
        UsageError: there is no plan.
    """
    gates = Gates(CheckOptions(), Configurations(config))
    found: list[ComparedPlan] = []
    readable = True
    for file in find_plans(paths):
        if isinstance(file, Unreadable):
            complain(f"cannot read {file.path}: {file.message}")
            readable = False
            continue
        gate = gates.of(file.path)
        found += [ComparedPlan(document, gate) for document in load_plans(file.path, file.data)]
    if not found and readable:
        raise UsageError(f"nothing to {verb}: no plan in {', '.join(paths)}")
    return found, readable
