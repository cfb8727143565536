"""JUnit XML, which every CI server shows as test results: one suite per file, one case per plan and rule.

There is no standard; this is what Jenkins, GitLab, Azure DevOps and CircleCI all read: the schema in
``tests/data/junit.xsd``. A case has at most one ``failure`` or ``error``: several readers keep only the first.
"""

from __future__ import annotations

from xml.etree import ElementTree as ET

from memcheck.edge.screen import Screen
from memcheck.edge.text import gib, percent
from memcheck.finding import Finding
from memcheck.report import text, text_blocks
from memcheck.report.full import HOST
from memcheck.report.repository import repository_path
from memcheck.report.story.findings import excerpt
from memcheck.report.story.memory import host_ledger, ledger
from memcheck.report.story.remedies import advice_lines
from memcheck.report.verdict import accepted
from memcheck.report.xml import element, printable, serialized
from memcheck.result import DEFECT, FAILED, PlanResult, Report

PLAIN = Screen(width=100, unicode=True)


def render(report: Report, screen: Screen | None = None) -> str:
    """The document; the screen plays no part."""
    root = element(None, "testsuites", name="memcheck")
    by_path: dict[str, list[PlanResult]] = {}
    for plan in report.plans:
        by_path.setdefault(plan.path, []).append(plan)
    for path, plans in by_path.items():
        suite = element(root, "testsuite", name=path)
        for plan in plans:
            cases(suite, plan)
        counted(suite)
    for item in report.unreadable:
        suite = element(root, "testsuite", name=item.path)
        case = element(suite, "testcase", name="readable", classname=item.path, file=repository_path(item.path))
        element(case, "error", message=item.message, type="unreadable")
        counted(suite)
    for name in ("tests", "failures", "errors"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    return serialized(root)


def cases(suite: ET.Element, plan: PlanResult) -> None:
    """A case that passes for a plan without findings, else one for every rule that found something."""
    by_rule: dict[tuple[str, str], list[Finding]] = {}
    for finding in plan.findings:
        by_rule.setdefault((finding.code, finding.name), []).append(finding)
    if not by_rule:
        case = element(suite, "testcase", name=plan.name, classname=plan.path, file=repository_path(plan.path))
        element(case, "system-out").text = printable(figures(plan))
    for (code, name), findings in by_rule.items():
        case = element(
            suite,
            "testcase",
            name=f"{plan.name}: {code} {name}",
            classname=plan.path,
            file=repository_path(plan.path),
            line=findings[0].location.span.line,
        )
        text = "\n\n".join(body(plan, finding) for finding in findings)
        failing = [finding for finding in findings if counts(plan, finding)]
        if failing:
            # A defect of memcheck is no verdict on the plan.
            tag = "error" if code == DEFECT else "failure"
            element(case, tag, message=failing[0].message, type=f"{failing[0].severity} {code}").text = text
        else:
            element(case, "system-out").text = text


def counts(plan: PlanResult, finding: Finding) -> bool:
    """Whether a finding fails its plan: errors do, and warnings where a plan without an error has failed."""
    if finding.severity == "warning":
        return plan.status == FAILED and not plan.count("error")
    return finding.severity == "error"


def body(plan: PlanResult, finding: Finding) -> str:
    """One finding for people: its lines, the memory budget if it is about memory, what to do."""
    source = text_blocks.source(excerpt(plan, finding), PLAIN)
    groups = [[f"{finding.severity} {finding.code}: {finding.message}", *source]]
    if plan.estimate is not None and finding.about_memory:
        groups.append(text.lines([host_ledger(plan) if finding.code == HOST else ledger(plan, plan.estimate)], PLAIN))
    groups.append(advice_lines(plan, finding))
    return printable("\n\n".join("\n".join(group) for group in groups if group))


def figures(plan: PlanResult) -> str:
    """What a plan that passes needs."""
    estimate = plan.estimate
    if estimate is None:
        return ""
    need, capacity = gib(estimate.needed_bytes), gib(estimate.capacity_bytes)
    hidden = "".join(f"\naccepted: {reason}" for reason in accepted(plan))
    return f"{need} of the {capacity} GiB of {plan.gpu} ({percent(estimate.utilization)}){hidden}"


def counted(suite: ET.Element) -> None:
    """Put the totals on a suite."""
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    suite.set("failures", str(sum(case.find("failure") is not None for case in cases)))
    suite.set("errors", str(sum(case.find("error") is not None for case in cases)))
