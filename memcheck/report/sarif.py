"""SARIF 2.1.0, with every property that GitHub code scanning marks as required."""

from __future__ import annotations

import os
import re
from typing import Any

from memcheck.edge.json_text import dumps
from memcheck.edge.opener import read_whole
from memcheck.edge.screen import Screen, clean
from memcheck.plan.finding import OTHER_HARDWARE, SEVERITIES, FileEdits, Finding, Location, Span
from memcheck.report.forge import (
    Keyed,
    doc_section,
    docs_folder,
    file_url,
    keyed,
    published,
    quoted,
    relative_to,
    repository_path,
    root,
    styled,
)
from memcheck.report.story.remedies import advice_lines, remedy_line
from memcheck.rules.registry import RULES
from memcheck.rules.result import BASELINE, COMMENT, DEFECT, Hidden, PlanResult, Report
from memcheck.rules.types import HEURISTIC, MEASURED, PROVABLE, Rule

WINDOW = 100
BASE = 37
MASK = 2**64 - 1
END = 0xFFFF

_LINE_END = re.compile("\r\n?")
_BLANKS = re.compile("[ \t]+")


def line_hashes(text: str) -> list[str]:
    """One hash per line; what follows the last line end is a line too, even if it is empty."""
    units = code_units(_BLANKS.sub("", _LINE_END.sub("\n", text)))
    prefixes = [0]
    for unit in [*units, END, *([0] * WINDOW)]:
        prefixes.append((prefixes[-1] * BASE + unit) & MASK)
    # A window's polynomial is what its last prefix holds beyond its first one.
    shift = pow(BASE, WINDOW, MASK + 1)
    starts = [0, *(index + 1 for index, unit in enumerate(units) if unit == 0x0A)]
    seen: dict[int, int] = {}
    hashes = []
    for start in starts:
        value = (prefixes[start + WINDOW] - prefixes[start] * shift) & MASK
        seen[value] = seen.get(value, 0) + 1
        hashes.append(f"{value:x}:{seen[value]}")
    return hashes


def code_units(text: str) -> list[int]:
    """The UTF-16 code units of a text."""
    encoded = text.encode("utf-16-be", "surrogatepass")
    return [high << 8 | low for high, low in zip(encoded[::2], encoded[1::2], strict=True)]


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
    "MEM7": "serving-engines",
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
        "fullDescription": {"text": cut(doc_section(rule.doc, "What it does") or rule.summary)},
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


SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
IDENTITY = "memcheck/v1"
AROUND = 2
"""Lines of context before a finding's own lines, and as many after them."""
MOST_INDENTED = 1000
"""Results of a log that is written for people as well: indentation is a third of it."""
MOST_CONTEXT = 1000
"""Characters of the lines around a finding: on one long line with many findings, each would repeat all of it."""
SUPPRESSIONS = {COMMENT: "inSource", BASELINE: "external"}
"""What is reported as suppressed, in SARIF's words. A rule that was not chosen has no results."""
MOST_RESULTS = 5000
"""Results per run. GitHub shows this many, the most severe ones, and refuses a run of more than 25,000."""

_EMBEDDED_LINK = re.compile(r"\[(?=[^\]]*\]\()")


def render(report: Report, screen: Screen | None = None) -> str:
    """The log; the screen plays no part."""
    log = document(report)
    count = len(log["runs"][0]["results"])
    return dumps(log, indent=1 if count <= MOST_INDENTED else None) + "\n"


def document(report: Report) -> dict[str, Any]:
    """One run. Rules are those that found something; ``results`` is there even when it is empty."""
    every = list(keyed(report, SUPPRESSIONS))
    found = gravest(every)
    rules = sorted({(finding.code, finding.name) for _, finding, _, _ in found})
    severities = {finding.code: finding.severity for _, finding, _, _ in found}
    index = {code: place for place, (code, _) in enumerate(rules)}
    hashes = Hashes()
    known = any(hidden is not None for _, _, _, hidden in every)
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "memcheck",
                        "version": report.version,
                        "semanticVersion": report.version,
                        **({"informationUri": address} if (address := docs_folder()) else {}),
                        "rules": [descriptor(code, name, severities[code]) for code, name in rules],
                    }
                },
                "automationDetails": {"id": category()},
                "invocations": [invocation(report, len(every) - len(found))],
                "columnKind": "unicodeCodePoints",
                "results": [
                    result(plan, finding, index[finding.code], identity, hashes) | suppressions(hidden, known=known)
                    for plan, finding, identity, hidden in found
                ],
            }
        ],
    }


def gravest(found: list[Keyed]) -> list[Keyed]:
    """The findings to upload: all, in the order of the plans, if there are at most ``MOST_RESULTS``.

    Otherwise the ``MOST_RESULTS`` most severe ones, findings that are shown before suppressed ones.
    """
    if len(found) <= MOST_RESULTS:
        return found
    return sorted(found, key=lambda item: (item[3] is not None, -SEVERITIES.index(item[1].severity)))[:MOST_RESULTS]


def suppressions(hidden: Hidden | None, *, known: bool) -> dict[str, object]:
    """Why a result is not to be shown. In one run all results or none have to say so: SARIF 2.1.0, 3.27.23."""
    if hidden is None:
        return {"suppressions": []} if known else {}
    reason = f"accepted in {hidden.why}" if hidden.by == BASELINE else clean(hidden.why)
    return {"suppressions": [{"kind": SUPPRESSIONS[hidden.by], "status": "accepted", "justification": reason}]}


def category() -> str:
    """What keeps apart the uploads of one commit: the folder of the repository that memcheck ran in."""
    folder = relative_to(os.getcwd(), root())
    return "memcheck/" if folder == "." else f"memcheck/{quoted(folder)}/"


def invocation(report: Report, left_out: int) -> dict[str, object]:
    """Whether everything could be checked, and what could not."""
    notes: list[dict[str, object]] = [
        {
            "level": "error",
            "message": {"text": f"cannot read {clean(item.path)}: {clean(item.message)}"},
            "locations": [{"physicalLocation": {"artifactLocation": {"uri": uri(item.path)}}}],
        }
        for item in report.unreadable
    ]
    if left_out:
        notes.append({"level": "warning", "message": {"text": f"{left_out:,} more findings are left out"}})
    record: dict[str, object] = {"executionSuccessful": not report.unreadable and not report.defects}
    return {**record, "toolExecutionNotifications": notes} if notes else record


def result(plan: PlanResult, finding: Finding, rule: int, identity: str, hashes: Hashes) -> dict[str, object]:
    """One finding. What the reader should look at first is the only primary location: GitHub reads no other."""
    record: dict[str, object] = {
        "ruleId": finding.code,
        "ruleIndex": rule,
        "level": LEVELS[finding.severity],
        "message": {"text": message(plan, finding)},
        "locations": [with_text(location(finding.location), finding.location, plan)],
        "partialFingerprints": {
            "primaryLocationLineHash": hashes.of(finding.location, plan),
            IDENTITY: identity,
        },
    }
    if finding.related:
        record["relatedLocations"] = [
            {"id": number, **location(where, label)} for number, (label, where) in enumerate(finding.related, 1)
        ]
    if fixes := fixes_of(plan, finding):
        record["fixes"] = fixes
    record["properties"] = properties(plan, finding)
    return record


def properties(plan: PlanResult, finding: Finding) -> dict[str, object]:
    """The plan that a result is about, and its figures."""
    record: dict[str, object] = {"plan": plan.name, "document": plan.document, "pointer": finding.pointer}
    if plan.estimate is not None:
        record["deviceBytes"] = plan.estimate.device_bytes
        record["neededBytes"] = plan.estimate.needed_bytes
        record["capacityBytes"] = plan.estimate.capacity_bytes
        record["utilization"] = round(plan.estimate.utilization, 6)
        if plan.host_capacity_bytes is not None:
            record["hostBytesPerNode"] = plan.estimate.host_bytes_per_node
            record["hostCapacityBytes"] = plan.host_capacity_bytes
    return record


def message(plan: PlanResult, finding: Finding) -> str:
    """What was found and what to do, as plain text in which nothing of the plan's becomes a link."""
    return _EMBEDDED_LINK.sub(r"\\[", "\n".join([clean(finding.message), *advice_lines(plan, finding)]))


def location(where: Location, label: str = "") -> dict[str, Any]:
    """A place with what it has to do with the finding."""
    text = f"{label} ({where.note})" if label and where.note else label or where.note
    record: dict[str, Any] = {
        "physicalLocation": {"artifactLocation": {"uri": uri(where.path)}, "region": one_line(where.span)}
    }
    if text:
        record["message"] = {"text": clean(text)}
    return record


def with_text(record: dict[str, Any], where: Location, plan: PlanResult) -> dict[str, object]:
    """A place with its text and the lines around it, for readers who do not have the file at hand."""
    lines = plan.sources.get(where.path, ())
    number = where.span.line
    if number <= len(lines):
        place = record["physicalLocation"]
        region = place["region"]
        line = lines[number - 1]
        end = min(region["endColumn"] - 1, region["startColumn"] - 1 + MOST_CONTEXT)
        region["snippet"] = {"text": line[region["startColumn"] - 1 : end]}
        first, last = max(1, number - AROUND), min(len(lines), number + AROUND)
        around = lines[first - 1 : last]
        if sum(map(len, around)) <= MOST_CONTEXT:
            place["contextRegion"] = {"startLine": first, "endLine": last, "snippet": {"text": "\n".join(around)}}
    return record


def one_line(span: Span) -> dict[str, int]:
    """A region on one line, never empty: an alert shows in a pull request only if all its lines are in the diff."""
    end = span.end_column if span.end_line == span.line else span.column + 1
    return {
        "startLine": span.line,
        "startColumn": span.column,
        "endLine": span.line,
        "endColumn": max(end, span.column + 1),
    }


def region(span: Span) -> dict[str, int]:
    """A region as it is."""
    return {
        "startLine": span.line,
        "startColumn": span.column,
        "endLine": span.end_line,
        "endColumn": span.end_column,
    }


def fixes_of(plan: PlanResult, finding: Finding) -> list[dict[str, object]]:
    """The one right correction if there is one, and every remedy that edits of the file make, but none that takes other
    hardware.
    """
    found = []
    if finding.fix:
        files = (FileEdits(finding.location.path, finding.fix),)
        found.append(fix(finding.help or f"mend {finding.name}", files))
    found += [
        fix(f"{remedy.title}: {remedy_line(plan, remedy)}", remedy.files(plan.path))
        for remedy in finding.remedies
        if remedy.is_edit and remedy.group != OTHER_HARDWARE
    ]
    return found


def fix(description: str, files: tuple[FileEdits, ...]) -> dict[str, object]:
    """Replacements in every file that takes part."""
    return {
        "description": {"text": clean(description)},
        "artifactChanges": [
            {
                "artifactLocation": {"uri": uri(file.path)},
                "replacements": [
                    {"deletedRegion": region(edit.span), "insertedContent": {"text": edit.text}} for edit in file.edits
                ],
            }
            for file in files
        ],
    }


def uri(path: str) -> str:
    """A path relative to the repository's root; what lies outside of it is named in full."""
    inside = repository_path(path)
    return file_url(inside) if os.path.isabs(inside) else quoted(inside.removeprefix("./"))


class Hashes:
    """Line hashes of the files that findings are in, each file hashed once."""

    def __init__(self) -> None:
        self._files: dict[str, list[str]] = {}

    def of(self, where: Location, plan: PlanResult) -> str:
        """The hash of the line that a finding starts on."""
        if where.path not in self._files:
            self._files[where.path] = line_hashes(text_of(where.path, plan))
        hashes = self._files[where.path]
        return hashes[min(where.span.line, len(hashes)) - 1]


LARGEST = 4 * 2**20
"""Bytes of a file that a finding can be in: plans and what they name are smaller."""


def text_of(path: str, plan: PlanResult) -> str:
    """The file as it lies on disk, since GitHub hashes that; the lines that were checked if there is none."""
    try:
        return read_whole(path, LARGEST).decode("utf-8", "replace")
    except (OSError, ValueError):  # ValueError: not a name that a file can have
        return "".join(f"{line}\n" for line in plan.sources.get(path, ()))
