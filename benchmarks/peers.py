"""memcheck beside other tools on ten plans, and why they differ."""

from __future__ import annotations

from typing import Any, NamedTuple

from benchmarks.cases import load
from benchmarks.score import answer
from memcheck.accounts.estimate import Estimate

GIB = 2**30
FRAMEWORKS = {
    "megatron": "Megatron",
    "pytorch": "PyTorch",
    "deepspeed": "DeepSpeed",
    "torchtitan": "torchtitan",
    "inference": "serving",
}
REFERENCES = ("simumax", "mbridge_memory_estimator", "torch_memtracker_fake")
"""Tools careful enough that every difference is owed an explanation."""
DIFFERENT = 0.05


class Answers(NamedTuple):
    """One plan."""

    key: str
    title: str
    ours: dict[str, Estimate]
    """By framework."""
    theirs: dict[str, tuple[float | None, str]]
    """GiB and note, by tool."""


def table() -> list[Answers]:
    """All ten plans."""
    facts = load("peers.json")
    found = []
    for key, plans in facts["plans"].items():
        ours = {framework: answer({"name": key, **plan}) for framework, plan in plans.items()}
        theirs = {tool: tuple(entry["answers"].get(key, (None, "not run"))) for tool, entry in facts["tools"].items()}
        found.append(Answers(key, facts["titles"][key], ours, theirs))
    return found


def nearest(answers: Answers, tool: str) -> tuple[str, float] | None:
    """Our framework that this tool's figure is compared with, and the difference."""
    value = answers.theirs[tool][0]
    if value is None:
        return None
    framework = load("peers.json")["compared"].get(tool, {}).get(answers.key) or next(iter(answers.ours))
    return framework, answers.ours[framework].allocated_bytes / GIB / value - 1


def unexplained(found: list[Answers]) -> list[str]:
    """Differences from a reference beyond 5 % that have no explanation, and explanations without a difference."""
    explanations: dict[str, dict[str, str]] = load("peers.json")["explanations"]
    problems = []
    for answers in found:
        for tool in REFERENCES:
            compared = nearest(answers, tool)
            differs = compared is not None and abs(compared[1]) > DIFFERENT
            explained = answers.key in explanations.get(tool, {})
            if differs and not explained:
                problems.append(f"{tool} {answers.key}: {compared[1]:+.1%} without an explanation")  # type: ignore[index]
            if explained and not differs:
                problems.append(f"{tool} {answers.key}: explained, but within {DIFFERENT:.0%}")
    return problems


def markdown(found: list[Answers]) -> str:
    """benchmarks/peers.md."""
    facts = load("peers.json")
    lines = [
        "# Ten plans, and what other tools answer",
        "",
        "Written by `python -m benchmarks.accuracy --write`; do not edit.",
        "",
        facts["source"],
        "GiB per GPU. memcheck's figures are `allocated`, the only one of its three that compares with the others; its",
        "`device` adds what the driver, the allocator and NCCL take.",
        "",
        *(f"- **{a.key}**: {a.title}" for a in found),
        "",
        "| tool | " + " | ".join(a.key for a in found) + " |",
        "|---|" + "---|" * len(found),
    ]
    for framework, title in FRAMEWORKS.items():
        cells = [_gib(a.ours[framework].allocated_bytes) if framework in a.ours else "" for a in found]
        if any(cells):
            lines.append(f"| **memcheck**, {title} | " + " | ".join(cells) + " |")
    for tool, entry in facts["tools"].items():
        cells = [_cell(a.theirs[tool][0]) for a in found]
        lines.append(f"| {entry.get('title', tool.replace('_', ' '))} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "An empty cell: the tool cannot express the plan, or was not run on it.",
        "",
        "## Differences explained",
        "",
    ]
    lines += [
        "Differences of more than 5 % from the tools that model a step tensor by tensor or trace one.",
        "",
        "| plan | tool | its figure | memcheck | difference | why |",
        "|---|---|---|---|---|---|",
    ]
    agreed = []
    for answers in found:
        for tool in REFERENCES:
            compared = nearest(answers, tool)
            if compared is None:
                continue
            framework, difference = compared
            theirs, ours = answers.theirs[tool][0], _gib(answers.ours[framework].allocated_bytes)
            name = facts["tools"][tool].get("title", tool)
            if abs(difference) <= DIFFERENT:
                agreed.append(f"{answers.key} {name} {theirs:.2f} against {ours} ({difference:+.1%})")
                continue
            why = facts["explanations"].get(tool, {}).get(answers.key, "")
            ours = f"{ours} ({FRAMEWORKS[framework]})"
            lines.append(f"| {answers.key} | {name} | {theirs:.2f} | {ours} | {difference:+.1%} | {why} |")
    lines += ["", f"Within 5 %: {'; '.join(agreed)}.", "", "## What is in memcheck's figures", ""]
    for answers in found:
        for framework, estimate in answers.ours.items():
            parts = ", ".join(
                f"{name.replace('_', ' ')} {size / GIB:.2f}"
                for name, size in sorted(estimate.components_bytes.items(), key=lambda kv: -kv[1])
                if size >= 0.01 * GIB and name not in ("context_and_nccl", "fragmentation")
            )
            where = f"peak in {estimate.instant} ({estimate.operation}), rank {estimate.pipeline_rank}"
            device = f"device {_gib(estimate.device_bytes)}"
            lines.append(f"- **{answers.key}**, {FRAMEWORKS[framework]}: {where}: {parts}; {device}")
    return "\n".join([*lines, ""])


def _gib(size: int) -> str:
    return f"{size / GIB:.2f}"


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def facts() -> dict[str, Any]:
    """The file behind the table."""
    return load("peers.json")
