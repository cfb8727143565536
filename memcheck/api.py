"""``memcheck.estimate``, ``memcheck.judge`` and ``memcheck.suggest``: the commands as functions."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from memcheck import __version__
from memcheck.config.find import EVERY, QUICK, Configurations, Gate
from memcheck.configs.documents import load_plans, only_plan
from memcheck.errors import UsageError
from memcheck.judge import check_file
from memcheck.plan.read import with_changes
from memcheck.plan.text import read_bytes
from memcheck.report.json import document as report_document
from memcheck.report.models import ReportData
from memcheck.rules.result import Report
from memcheck.what_if import with_remedies
from memcheck.what_if.suggest.models import SuggestionsData
from memcheck.what_if.suggest.report import GOALS, as_data
from memcheck.what_if.suggest.run import check_keys
from memcheck.what_if.suggest.run import suggest as search

PlanOrConfig: TypeAlias = "str | os.PathLike[str] | Mapping[str, Any]"
"""A path of a plan or of a framework's config, or a plan as a mapping."""
IN_MEMORY = "<plan>"
"""The path that reports show for a plan that is no file."""
HARDWARE = {"gpu": "gpu", "gpus_per_node": "gpus_per_node", "nodes": "nodes", "host_memory_gib": "host_memory"}
"""Keyword to the word that a config's reader takes."""
TEXT_HELP = "a string is a path; pass the text of a plan as a mapping: yaml.safe_load(text)"
SEARCH_S = 20.0
"""Seconds of a search, unless the caller says more."""


def estimate(
    plan: PlanOrConfig,
    *,
    gpu: str | None = None,
    gpus_per_node: int | None = None,
    nodes: int | None = None,
    host_memory_gib: float | None = None,
    changes: Mapping[str, Any] | None = None,
    config: str | os.PathLike[str] | None = None,
) -> ReportData:
    """Predict the peak memory of every GPU of a job, without a verdict of the rules.

    Args:
        plan: A path of a plan or of a framework's config (Axolotl, TRL, torchtitan ...), or a plan as a mapping.
        gpu: The GPU instead of the plan's own, or the one that a config leaves out.
        gpus_per_node: GPUs of each node.
        nodes: Nodes.
        host_memory_gib: Host memory of a node in GiB, which is then checked.
        changes: Dotted keys of the plan and values in their place, as ``{"training.micro_batch_size": 2}``.
        config: The ``memcheck.toml`` to use. None: the nearest to the plan.

    Returns:
        One ``PlanData`` per plan of the file. A plan that cannot be estimated has ``estimate=None`` and diagnostics.

    Raises:
        memcheck.UsageError: the file cannot be read, or the arguments contradict each other.
    """
    path, data = _source(plan)
    gate = _gate(path, gpu, gpus_per_node, nodes, host_memory_gib, changes, config)
    return _report(path, data, gate._replace(inventory=True, grounds=EVERY), diagnostics=False)


def check(  # noqa: PLR0913  # the options of a command, each by its keyword
    plan: PlanOrConfig,
    *,
    gpu: str | None = None,
    gpus_per_node: int | None = None,
    nodes: int | None = None,
    host_memory_gib: float | None = None,
    changes: Mapping[str, Any] | None = None,
    fail_above: float | None = None,
    remedies: bool = True,
    config: str | os.PathLike[str] | None = None,
) -> ReportData:
    """Check the plans of a file as ``memcheck check`` does: every rule, and remedies that were computed again.

    Args:
        plan: A path of a plan or of a framework's config, or a plan as a mapping.
        gpu: The GPU instead of the plan's own, or the one that a config leaves out.
        gpus_per_node: GPUs of each node.
        nodes: Nodes.
        host_memory_gib: Host memory of a node in GiB, which is then checked.
        changes: Dotted keys of the plan and values in their place.
        fail_above: The fraction of capacity above which a plan fails; None: the policy's.
        remedies: Whether remedies are searched for findings about memory.
        config: The ``memcheck.toml`` to use. None: the nearest to the plan.

    Returns:
        ``report.plans[0].status`` is ``passed``, ``failed`` or ``error``; ``report.passed`` says it for all.

    Raises:
        memcheck.UsageError: the file cannot be read, or the arguments contradict each other.
    """
    path, data = _source(plan)
    gate = _gate(path, gpu, gpus_per_node, nodes, host_memory_gib, changes, config)
    gate = gate._replace(fail_above=fail_above, grounds=QUICK, remedies=with_remedies if remedies else None)
    return _report(path, data, gate, diagnostics=True)


def suggest(  # noqa: PLR0913  # the options of a command, each by its keyword
    plan: PlanOrConfig,
    *,
    goal: str = "fit",
    keep: Sequence[str] = (),
    top: int = 5,
    document: int | None = None,
    gpu: str | None = None,
    gpus_per_node: int | None = None,
    nodes: int | None = None,
    fail_above: float | None = None,
    budget_seconds: float | None = SEARCH_S,
    config: str | os.PathLike[str] | None = None,
) -> SuggestionsData:
    """Search for plans near this one that fit, are fastest, cost least, or need the fewest GPUs.

    Args:
        plan: A path of a plan or of a framework's config, or a plan as a mapping.
        goal: ``fit``, ``throughput``, ``gpus``, ``cheapest``, ``max-batch`` or ``max-sequence``.
        keep: Keys or sections that must not change, as ``training.optimizer``.
        top: The number of suggestions.
        document: Which plan of a file with several, from 0.
        gpu: Search on this GPU instead of the plan's own.
        gpus_per_node: Search with this number of GPUs in each node.
        nodes: Search with this number of nodes.
        fail_above: The fraction of capacity that a plan may need; None: the policy's.
        budget_seconds: Seconds after which the search stops; None: no end.
        config: The ``memcheck.toml`` to use. None: the nearest to the plan.

    Raises:
        memcheck.UsageError: the file cannot be read, a key is unknown, or the goal makes no sense for this plan.
    """
    if goal not in GOALS:
        raise UsageError(f"unknown goal {goal!r}", f"use one of {', '.join(GOALS)}")
    check_keys(tuple(keep))
    path, data = _source(plan)
    gate = _gate(path, gpu, gpus_per_node, nodes, None, None, config)
    plan_document = only_plan(path, load_plans(path, data, hardware=gate.hardware), document)
    if gate.changes:
        plan_document = with_changes(plan_document, gate.changes)
    gate = gate._replace(fail_above=fail_above)
    answer = search(plan_document, data, gate, goal=goal, keep=tuple(keep), top=top, budget=budget_seconds)
    return SuggestionsData.model_validate(as_data(answer))


def _source(plan: PlanOrConfig) -> tuple[str, bytes]:
    """The path that reports show, and the bytes.

    Raises:
        UsageError: the file cannot be read, or the mapping holds what YAML cannot say.
    """
    if isinstance(plan, Mapping):
        try:
            return IN_MEMORY, json.dumps(plan, indent=1).encode()
        except (TypeError, ValueError) as error:
            raise UsageError(f"the plan holds a value that YAML cannot say: {error}", "use plain values") from None
    path = os.fspath(plan)
    try:
        return path, read_bytes(path)
    except (OSError, ValueError) as error:  # a path with a zero byte is a ValueError
        reason = getattr(error, "strerror", None) or error
        help = TEXT_HELP if "\n" in path or ": " in path else ""
        raise UsageError(f"cannot read {path.splitlines()[0] if path else 'an empty path'}: {reason}", help) from None


def _gate(
    path: str,
    gpu: str | None,
    gpus_per_node: int | None,
    nodes: int | None,
    host_memory_gib: float | None,
    changes: Mapping[str, Any] | None,
    config: str | os.PathLike[str] | None,
) -> Gate:
    """How the plan is judged: the project's configuration, and what the caller states in its place."""
    values = {"gpu": gpu, "gpus_per_node": gpus_per_node, "nodes": nodes, "host_memory_gib": host_memory_gib}
    stated = {key: value for key, value in values.items() if value is not None}
    settings = Configurations(None if config is None else os.fspath(config)).of(path)
    hardware = {**(settings.hardware_of(path) or {}), **{HARDWARE[key]: value for key, value in stated.items()}}
    return Gate(
        settings=settings,
        changes={**{f"hardware.{key}": value for key, value in stated.items()}, **(changes or {})},
        hardware={**hardware, **({"settings": dict(changes)} if changes else {})},
    )


def _report(path: str, data: bytes, gate: Gate, *, diagnostics: bool) -> ReportData:
    """The report of one file.

    Raises:
        RuntimeError: memcheck itself failed on a plan; the text holds the traceback.
    """
    results, traces = check_file(path, data, gate)
    if traces:
        raise RuntimeError("this is a defect of memcheck:\n" + "\n".join(traces))
    return ReportData.model_validate(report_document(Report(__version__, tuple(results)), diagnostics=diagnostics))
