"""Formats of CI servers: JUnit, Checkstyle, GitLab's Code Quality and reviewdog's diagnostics."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree as ET

from memcheck.edge.json_text import dumps
from memcheck.edge.screen import Screen, clean, gib, percent, without_commands
from memcheck.plan.finding import OTHER_HARDWARE, Edit, Finding, Location, Span
from memcheck.report import text, text_blocks
from memcheck.report.forge import identified, neutral, published, repository_path
from memcheck.report.story.findings import excerpt
from memcheck.report.story.memory import host_ledger, ledger
from memcheck.report.story.remedies import advice_lines
from memcheck.report.verdict import HOST, accepted
from memcheck.rules.result import DEFECT, FAILED, PlanResult, Report


def element(parent: ET.Element | None, tag: str, **attributes: object) -> ET.Element:
    """A new element, under its parent if it has one; what is None is left out."""
    stated = {key: printable(str(value)) for key, value in attributes.items() if value is not None}
    return ET.Element(tag, stated) if parent is None else ET.SubElement(parent, tag, stated)


def printable(text: str) -> str:
    """User text without control characters, which XML cannot carry even as entities, and without runners' commands."""
    return without_commands(clean(text))


def serialized(root: ET.Element) -> str:
    """The document, indented, with its declaration."""
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


PLAIN = Screen(width=100, unicode=True)


def junit(report: Report, screen: Screen | None = None) -> str:
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


VERSION = "4.3"
"""Version of the Checkstyle format, not of memcheck; readers ask for it."""


def checkstyle(report: Report, screen: Screen | None = None) -> str:
    """One ``file`` per file with or without findings, one ``error`` per finding; the screen plays no part.

    Plans that extend the same file may say the same of it: that is one error.
    """
    root = element(None, "checkstyle", version=VERSION)
    files: dict[str, ET.Element] = {}
    said: set[tuple[str, ...]] = set()

    def file(path: str) -> ET.Element:
        if path not in files:
            files[path] = element(root, "file", name=path)
        return files[path]

    for plan in report.plans:
        file(plan.path)
        for finding in plan.findings:
            span = finding.location.span
            record = {
                "line": str(span.line),
                "column": str(span.column),
                "severity": finding.severity,
                "message": neutral(
                    " ".join(f"{finding.message} ({finding.help})".split()) if finding.help else finding.message
                ),
                "source": f"memcheck.{finding.code}",
            }
            parts = (finding.location.path, *record.values())
            if parts not in said:
                said.add(parts)
                element(file(finding.location.path), "error", **record)
    return serialized(root)


GITLAB_SEVERITIES = {"error": "critical", "warning": "minor", "info": "info"}
MEMORY_SEVERITIES = {"error": "blocker", "warning": "major", "info": "info"}


def gitlab(report: Report, screen: Screen | None = None) -> str:
    """An array with one object per finding; the screen plays no part."""
    found = [issue(finding, identity) for _, finding, identity in identified(report)]
    return dumps(found, indent=1) + "\n"


def issue(finding: Finding, identity: str) -> dict[str, object]:
    """One finding. Issues of equal fingerprint would be shown as one, so every finding has its own."""
    span = finding.location.span
    return {
        "description": f"{finding.code} {neutral(clean(finding.message))}",
        "check_name": finding.name,
        "fingerprint": identity,
        "severity": severity(finding),
        "location": {
            "path": repository_path(finding.location.path).removeprefix("./"),
            "lines": {"begin": span.line, "end": span.end_line},
        },
    }


def severity(finding: Finding) -> str:
    """What is about the amount of memory weighs one step more than the rest of its kind."""
    return (MEMORY_SEVERITIES if finding.code.startswith("MEM1") else GITLAB_SEVERITIES)[finding.severity]


REVIEWDOG_SEVERITIES = {"error": "ERROR", "warning": "WARNING", "info": "INFO"}


def rdjson(report: Report, screen: Screen | None = None) -> str:
    """One result with all diagnostics; the screen plays no part."""
    diagnostics = [diagnostic(plan, finding) for plan in report.plans for finding in plan.findings]
    document = {"source": {"name": "memcheck"}, "diagnostics": diagnostics}
    return dumps(document, indent=1) + "\n"


def diagnostic(plan: PlanResult, finding: Finding) -> dict[str, object]:
    """One finding as a diagnostic of the Reviewdog Diagnostic Format."""
    url = published(finding.code) if finding.code != DEFECT else ""
    record: dict[str, object] = {
        "message": "\n".join([neutral(line) for line in (clean(finding.message), *advice_lines(plan, finding))]),
        "location": location(finding.location, plan),
        "severity": REVIEWDOG_SEVERITIES[finding.severity],
        "code": {"value": finding.code, **({"url": url} if url else {})},
    }
    if finding.related:
        record["related_locations"] = [
            {"message": neutral(clean(label)), "location": location(where, plan)} for label, where in finding.related
        ]
    if found := suggestions(plan, finding):
        record["suggestions"] = found
    return record


def location(where: Location, plan: PlanResult) -> dict[str, object]:
    """A place; the path is as the command was given it."""
    return {"path": where.path, "range": span(where.span, where.path, plan)}


def span(where: Span, path: str, plan: PlanResult) -> dict[str, object]:
    """Start and end of a span, with columns in bytes of UTF-8. The end is exclusive."""
    return {
        "start": {"line": where.line, "column": byte_column(plan, path, where.line, where.column)},
        "end": {"line": where.end_line, "column": byte_column(plan, path, where.end_line, where.end_column)},
    }


def byte_column(plan: PlanResult, path: str, line: int, column: int) -> int:
    """A column counted in characters, as one counted in bytes of UTF-8."""
    lines = plan.sources.get(path, ())
    before = lines[line - 1][: column - 1] if line <= len(lines) else ""
    return column + len(before.encode("utf-8", "replace")) - len(before)


def suggestions(plan: PlanResult, finding: Finding) -> list[dict[str, object]]:
    """The fix and the remedies that edit nothing but the finding's own line, each as one replacement.

    None changes the hardware: a suggestion is accepted with one click.
    """
    where = finding.location
    choices = [finding.fix]
    for remedy in finding.remedies:
        files = remedy.files(plan.path)
        if [file.path for file in files] == [where.path] and remedy.group != OTHER_HARDWARE:
            choices.append(files[0].edits)
    found: list[dict[str, object]] = []
    for edits in choices:
        whole = merged(edits, where.span.line, plan.sources.get(where.path, ()))
        if whole is not None:
            found.append({"range": span(whole.span, where.path, plan), "text": whole.text})
    return found


def merged(edits: tuple[Edit, ...], line: int, lines: tuple[str, ...]) -> Edit | None:
    """Several edits of one line as one that spans them; None if they are elsewhere too."""
    if not edits or line > len(lines) or any((e.span.line, e.span.end_line) != (line, line) for e in edits):
        return None
    ordered = sorted(edits)
    text = ordered[0].text
    for before, after in pairwise(ordered):
        text += lines[line - 1][before.span.end_column - 1 : after.span.column - 1] + after.text
    return Edit(Span(line, ordered[0].span.column, line, ordered[-1].span.end_column), text)
