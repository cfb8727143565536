"""No finding without a place: everything that memcheck says points into the text, from 1."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from memcheck.judge import Gate, check_file
from memcheck.plan.finding import Finding, Location, Span
from memcheck.rules.result import PlanResult
from tests.cli.plans import GOOD
from tests.examples import rendered
from tests.report.rule_reports import ROOT, at_root

RULE_EXAMPLES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs/rules/examples").glob("*.yaml"))
GARBAGE = (
    "",
    "{line}{line}",
    "{key}: nonsense",
    "{key}: -7",
    "{key}: [1, 2]",
    "{key}:",
    "{key}: &a !!set {{x}}",
    "é: 𝕏",
)


def wrong(plan: PlanResult, finding: Finding) -> list[str]:
    """What is wrong with the places of a finding."""
    found = list(_misplaced(plan, finding.location, "location", shown=True))
    for label, where in finding.related:
        found += _misplaced(plan, where, f"related {label!r}", shown=True)
    for edit in finding.fix:
        found += _misplaced(plan, Location(finding.location.path, edit.span), "fix", shown=False)
    for remedy in finding.remedies:
        for edit in remedy.edits:
            found += _misplaced(plan, Location(plan.path, edit.span), f"remedy {remedy.title!r}", shown=False)
    return [f"{plan.path} {finding.code}: {text}" for text in found]


def _misplaced(plan: PlanResult, where: Location, what: str, *, shown: bool) -> Iterator[str]:
    """Lines and columns count from 1, ends are not before starts, and both are in the text of a known file."""
    span, lines = where.span, plan.sources.get(where.path)
    if lines is None:
        yield f"{what} is in {where.path!r}, which was not read"
        return
    text = (*lines, "")  # behind the last line end is a place, too
    if not 1 <= span.line <= span.end_line <= len(text):
        yield f"{what} has no lines: {span}"
        return
    last = len(text[span.end_line - 1]) + (2 if shown else 1)  # an underline may stand behind the line
    if not (span.column >= 1 and 1 <= span.end_column <= last):
        yield f"{what} has no columns: {span}"
    if (span.line, span.column) > (span.end_line, span.end_column):
        yield f"{what} ends before it starts: {span}"


def in_file(path: str, data: bytes | None = None) -> list[str]:
    """What is wrong in the findings about one file."""
    with at_root():
        plans, traces = check_file(path, Path(path).read_bytes() if data is None else data, Gate())
    assert traces == []
    return [text for plan in plans for finding in plan.findings for text in wrong(plan, finding)]


@pytest.mark.slow
def test_every_finding_of_a_rule_example_has_a_place() -> None:
    """The finding itself, the places it names, and its fix."""
    for path in RULE_EXAMPLES:
        assert in_file(path) == [], path


@pytest.mark.slow
@pytest.mark.parametrize("name", rendered.NAMES)
def test_every_finding_of_an_example_has_a_place(name: str) -> None:
    """The same for the edits of the remedies."""
    plans = rendered.results(name)
    assert [text for plan in plans for finding in plan.findings for text in wrong(plan, finding)] == []


@pytest.mark.parametrize("garbage", GARBAGE)
def test_findings_about_broken_plans_have_places(garbage: str) -> None:
    """Whichever line of a plan is spoilt, and however."""
    lines = GOOD.format(name="plan").splitlines(keepends=True)
    bad = []
    for index, line in enumerate(lines):
        indent = line[: len(line) - len(line.lstrip())]
        spoilt = indent + garbage.format(line=line.strip(), key=line.strip().partition(":")[0]) + "\n"
        text = "".join([*lines[:index], spoilt, *lines[index + 1 :]])
        bad += in_file("plan.yaml", text.encode())
    assert bad == []


def test_what_has_no_place_is_noticed() -> None:
    """The check of this file finds columns from 0, lines behind the end, and files that nobody read."""
    (plan,) = rendered.results("gpt2-xl-2048")
    (finding,) = plan.findings
    for span in (Span(1, 0, 1, 4), Span(0, 1, 0, 4), Span(999, 1, 999, 2), Span(2, 5, 2, 3)):
        moved = finding._replace(location=finding.location._replace(span=span))
        assert wrong(plan, moved)
    assert wrong(plan, finding._replace(location=finding.location._replace(path="elsewhere.yaml")))
    assert wrong(plan, finding) == []
