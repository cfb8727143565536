"""What memcheck says about every rule's bad example: a row per finding, and for a few plans the whole of each format.

Figures belong to the rules about memory alone; other rules' findings are shown without the estimate, so that these
files do not move with the engine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from memcheck.edge.screen import Screen
from memcheck.judge import Gate, check_file
from memcheck.plan.finding import Edit, Finding, Location, Remedy, Span
from memcheck.report import github, renderer
from memcheck.report.forge import DOCS_URL, WORKSPACES
from memcheck.report.full import render as render_full
from memcheck.report.json import document as json_document
from memcheck.report.sarif import document
from memcheck.rules.result import PlanResult, Report
from memcheck.what_if import with_remedies
from tests.rules.configured import settings_of

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).resolve().parent / "golden"
FINDINGS = GOLDEN / "findings.txt"
"""Each finding of each rule: what it says, where it points, what mends it."""
CODES = sorted(path.name.partition(".")[0] for path in (ROOT / "docs" / "rules" / "examples").glob("*.bad.yaml"))
SHOWN = ("MEM101", "MEM106", "MEM203", "MEM211", "MEM605")
"""Rules whose bad example is kept in every format: memory of a GPU and of a node, an error, a warning, a policy."""
FORMATS = ("brief", "concise", "markdown", "csv", "jsonl", "gitlab", "checkstyle", "rdjson", "junit")
"""Formats that are kept as they are written; four others are kept without what other golden files hold."""
VERSION = "0.0.0"
"""A release does not move the golden files."""

_SCREEN = Screen(width=100)


@contextmanager
def at_root() -> Iterator[None]:
    """Stand where people stand, outside of any runner, so that paths read as they do on their screens."""
    before, environment = os.getcwd(), {name: os.environ.pop(name, None) for name in (*WORKSPACES, DOCS_URL)}
    os.chdir(ROOT)
    try:
        yield
    finally:
        os.chdir(before)
        os.environ.update({name: value for name, value in environment.items() if value is not None})


@cache
def report_of(code: str) -> Report:
    """The findings of one rule in its bad example."""
    path = f"docs/rules/examples/{code}.bad.yaml"
    with at_root():
        data = Path(path).read_bytes()
        gate = Gate(profile="research", remedies=with_remedies, settings=settings_of(data))
        plans, traces = check_file(path, data, gate)
    if traces:
        raise AssertionError("\n".join(traces))
    return Report(VERSION, tuple(only(code, plan) for plan in plans))


def only(code: str, plan: PlanResult) -> PlanResult:
    """A result with what one rule has to say."""
    plan = plan._replace(findings=tuple(finding for finding in plan.findings if finding.code == code))
    return plan if code.startswith("MEM1") else plan._replace(estimate=None, assumptions=())


def rendered(code: str) -> dict[str, str]:
    """Format to text."""
    report = report_of(code)
    with at_root():
        return {
            "full": render_full(report, _SCREEN),
            "json": diagnostics(report),
            "sarif": json.dumps(without_help(document(report)), indent=1, ensure_ascii=False) + "\n",
            "github": github.render(report, _SCREEN, "token"),
            **{form: _text(renderer(form)(report, _SCREEN)) for form in FORMATS},
        }


def _text(written: str | bytes) -> str:
    """A report as a section of a golden file, which ends with a line feed."""
    assert isinstance(written, str)
    return written if written.endswith("\n") else written + "\n"


def diagnostics(report: Report) -> str:
    """The plans of the JSON report without figures, which ``tests/examples`` holds."""
    plans = [{**plan, "estimate": None} for plan in json_document(report)["plans"]]
    return json.dumps(plans, indent=1, ensure_ascii=False) + "\n"


def without_help(log: dict) -> dict:
    """A log without the rules' pages, which ``docs/rules`` holds."""
    for rule in log["runs"][0]["tool"]["driver"]["rules"]:
        del rule["help"], rule["fullDescription"]
    return log


def golden(code: str) -> Path:
    """The golden file of one rule, with a section for each format."""
    return GOLDEN / f"{code}.txt"


def table() -> dict[str, list[str]]:
    """Every finding of every rule as lines: its place, which is kept by hand, then what it says."""
    return {
        f"{code} {number}": row(plan, finding)
        for code in CODES
        for number, (plan, finding) in enumerate((p, f) for p in report_of(code).plans for f in p.findings)
    }


def row(plan: PlanResult, finding: Finding) -> list[str]:
    """Place and key; name and message; help; the other places; the edits that mend it; the remedies."""
    mark = " [*]" if plan.fixable(finding) else ""
    lines = [
        f"{finding.severity} {place(plan, finding.location)} {finding.pointer or '/'}",
        f"{finding.name}{mark}: {finding.message}",
        *([f"help: {finding.help}"] if finding.help else []),
        *(f"{place(plan, where)} {label}" for label, where in finding.related),
        *(f"fix: {edit(each)}" for each in finding.fix),
    ]
    for remedy in finding.remedies:
        lines.append(f"remedy: {remedy.title} {json.dumps(remedy.set)}{_terms(remedy)}")
        lines += [f"  {path} {edit(each)}" for path, edits in remedy.files("plan") for each in edits]
    return [line.replace("\n", "\\n") for line in lines]


def _terms(remedy: Remedy) -> str:
    """The group, and what else a reader is told of a remedy but its figures."""
    told = (remedy.group, remedy.role, "" if remedy.sure else "not sure", "safe" if remedy.safe else "")
    return "".join(f", {each}" for each in told if each)


def place(plan: PlanResult, where: Location) -> str:
    """``8:11-8:12``, with the file where it is not the plan's own, and the note where there is one."""
    return "".join(
        [
            "" if where.path == plan.path else f"{where.path}:",
            spanned(where.span),
            f" ({where.note})" if where.note else "",
        ]
    )


def spanned(span: Span) -> str:
    """``8:11-8:12``."""
    return f"{span.line}:{span.column}-{span.end_line}:{span.end_column}"


def edit(item: Edit) -> str:
    """``8:11-8:12 "2"``."""
    return f"{spanned(item.span)} {json.dumps(item.text, ensure_ascii=False)}"


def as_text(rows: dict[str, list[str]]) -> str:
    """The table as it is kept: a heading per finding, and what it says below it, indented."""
    return "".join(
        f"{name} {lines[0]}\n" + "".join(f"  {line}\n" for line in lines[1:]) for name, lines in rows.items()
    )


def as_rows(text: str) -> dict[str, list[str]]:
    """The table again from its text."""
    rows: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("  "):
            rows[next(reversed(rows))].append(line[2:])
        else:
            code, number, first = line.split(" ", 2)
            rows[f"{code} {number}"] = [first]
    return rows
