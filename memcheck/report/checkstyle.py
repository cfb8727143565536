"""Checkstyle XML, read by Jenkins' warnings plug-in, reviewdog and many editors."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from memcheck.edge.screen import Screen
from memcheck.report.neutral import neutral
from memcheck.report.xml import element, serialized
from memcheck.result import Report

VERSION = "4.3"
"""Version of the Checkstyle format, not of memcheck; readers ask for it."""


def render(report: Report, screen: Screen | None = None) -> str:
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
