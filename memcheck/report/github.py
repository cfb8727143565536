"""GitHub Actions: the human report in groups, then annotations within the runner's budget.

The runner shows at most 10 errors, 10 warnings and 10 notices per step (``_maxCountPerIssueType`` in actions/runner)
and drops the rest silently; so findings are ranked, eight or nine of each kind are sent, and a notice counts
the others.
"""

from __future__ import annotations

import os

from memcheck.edge.screen import Screen, clean, inert, one_line, plural
from memcheck.plan.finding import Finding, Location
from memcheck.report.forge import relative_to
from memcheck.report.full import plan_section
from memcheck.report.story.remedies import advice_lines
from memcheck.report.story.summary import summary
from memcheck.report.verdict import fullness, pressure
from memcheck.rules.result import PlanResult, Report

PER_KIND = {"error": 9, "warning": 9, "notice": 8}
"""One of each is left for what the step itself has to say, and one notice for the findings that are left out."""
MESSAGE_LIMIT = 4096
"""The runner cuts longer messages."""
KINDS = {"error": "error", "warning": "warning", "info": "notice"}


def render(report: Report, screen: Screen, token: str = "") -> str:
    """Groups of human text, one command per annotation, the summary; ``token`` guards human text (random if empty)."""
    token = token or "memcheck-" + os.urandom(16).hex()
    lines: list[str] = []
    by_path: dict[str, list[PlanResult]] = {}
    for plan in report.plans:
        by_path.setdefault(plan.path, []).append(plan)
    for path, plans in by_path.items():
        text = "\n\n".join(plan_section(plan, screen) for plan in plans)
        lines += [f"::group::{escape(group_title(path, plans))}", *guarded(text, token), "::endgroup::"]
    lines += workflow_commands(report)
    return "\n".join([*lines, summary(report)]) + "\n"


def group_title(path: str, plans: list[PlanResult]) -> str:
    """What a folded group shows: the path and the worst of its plans."""
    codes = dict.fromkeys(each.code for plan in plans for each in plan.findings if each.severity == "error")
    failed = [plan for plan in plans if plan.status != "passed"]
    full = fullness(max((plan for plan in plans if plan.estimate is not None), key=pressure, default=plans[0]))
    worst = f", {full}" if full else ""
    passed = "accepted" if any(plan.accepted for plan in plans) else "passed"
    by = f"failed by {', '.join(codes)}" if codes else "failed"
    return f"{one_line(path)}: {by if failed else passed}{worst}"


def guarded(text: str, token: str) -> list[str]:
    """User text in which the runner recognises no command, whatever the plan's author wrote."""
    return [f"::stop-commands::{token}", inert(text), f"::{token}::"]


def workflow_commands(report: Report) -> list[str]:
    """At most ``PER_KIND`` of each kind, the worst first, and a notice with the number that was left out."""
    ranked = sorted(
        ((plan, finding) for plan in report.plans for finding in plan.findings),
        key=lambda pair: -pressure(pair[0]),
    )
    lines: list[str] = []
    hidden = 0
    for severity, kind in KINDS.items():
        chosen = [pair for pair in ranked if pair[1].severity == severity]
        most = PER_KIND[kind]
        lines += [command(kind, plan, finding) for plan, finding in chosen[:most]]
        hidden += len(chosen) - len(chosen[:most])
    if hidden:
        text = f"{plural(hidden, 'more finding')} in the log and the job summary: {summary(report)}"
        lines.append(f"::notice title=memcheck::{escape(text)}")
    return lines


def command(kind: str, plan: PlanResult, finding: Finding) -> str:
    """One annotation of a GitHub workflow for a finding: ``::error file=...::message``."""
    where = finding.location
    properties = {
        "file": clean(workspace_path(where.path)),
        **position(where),
        "title": f"{finding.code} {finding.name}",
    }
    head = ",".join(f"{key}={escape_property(str(item))}" for key, item in properties.items())
    return f"::{kind} {head}::{escape(message(plan, finding))}"


def position(where: Location) -> dict[str, int]:
    """Line and column properties that the runner keeps: it drops columns of spans over several lines.

    The runner's ``endColumn`` is the column of the last character; ``end_column`` of a span is the one after it.
    """
    span = where.span
    if span.end_line > span.line:
        return {"line": span.line, "endLine": span.end_line}
    return {
        "line": span.line,
        "endLine": span.line,
        "col": span.column,
        "endColumn": max(span.column, span.end_column - 1),
    }


def message(plan: PlanResult, finding: Finding) -> str:
    """The text of an annotation: place and code too, because the log shows nothing else."""
    where = finding.location
    lines = [f"{one_line(where.path)}:{where.span.line}:{where.span.column}: {finding.code} {clean(finding.message)}"]
    lines += advice_lines(plan, finding)
    text = "\n".join(lines)
    return text if len(text) <= MESSAGE_LIMIT else text[: MESSAGE_LIMIT - 3] + "..."


def workspace_path(path: str) -> str:
    """The path as GitHub knows it: relative to the workspace, even when the step runs in a folder below it."""
    workspace = os.environ.get("GITHUB_WORKSPACE")
    return relative_to(path, workspace) if workspace else path


def escape(text: str) -> str:
    """Escape the message of a workflow command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def escape_property(text: str) -> str:
    """Escape a property of a workflow command."""
    return escape(text).replace(":", "%3A").replace(",", "%2C")
