"""Rules as SARIF describes them: the text that GitHub shows with an alert, made from each rule's one docstring."""

from __future__ import annotations

from memcheck.edge.screen import Screen
from memcheck.report.links import published
from memcheck.report.page import section, styled
from memcheck.result import DEFECT
from memcheck.rules.registry import RULES
from memcheck.rules.types import HEURISTIC, MEASURED, PROVABLE, Rule

LEVELS = {"error": "error", "warning": "warning", "info": "note"}
PROBLEM_SEVERITIES = {"error": "error", "warning": "warning", "info": "recommendation"}
TEXT_LIMIT = 1024
"""The most characters of a rule's description: GitHub refuses longer ones."""
TAGS = {
    "MEM0": "plan-file",
    "MEM1": "memory",
    "MEM2": "layout",
    "MEM3": "hardware",
    "MEM4": "recipe",
    "MEM5": "framework-config",
    "MEM6": "policy",
}
"""What a family of codes is about."""
PRECISIONS = {PROVABLE: "very-high", MEASURED: "high", HEURISTIC: "medium"}
"""What a rule says of its precision, in GitHub's words."""

_ALL = {rule.code: rule for rule in RULES}


def descriptor(code: str, name: str, severity: str) -> dict[str, object]:
    """One rule; a code without a rule is memcheck's own failure."""
    rule = _ALL.get(code) or _defect(code, name, severity)
    markdown = rule.explain()
    url = published(code) if code != DEFECT else ""
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": cut(rule.summary)},
        "fullDescription": {"text": cut(section(rule.doc, "What it does") or rule.summary)},
        "help": {"text": styled(markdown, Screen()), "markdown": markdown},
        **({"helpUri": url} if url else {}),
        "defaultConfiguration": {"level": LEVELS[rule.severity]},
        "properties": {
            "tags": ["training-plan", TAGS.get(code[:4], "plan")],
            "precision": PRECISIONS[rule.precision],
            "problem.severity": PROBLEM_SEVERITIES[rule.severity],
        },
    }


def cut(text: str) -> str:
    """At most as much as GitHub takes."""
    return text if len(text) <= TEXT_LIMIT else text[: TEXT_LIMIT - 3] + "..."


def _defect(code: str, name: str, severity: str) -> Rule:
    summary = "memcheck itself failed on a plan."
    doc = f"{summary}\n\n## How to fix\n\nReport it: this is a defect of memcheck."
    return Rule(code=code, name=name, severity=severity, summary=summary, doc=doc)
