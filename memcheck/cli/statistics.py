"""Where the counts of ``--statistics`` go."""

from __future__ import annotations

import sys

from memcheck.cli.options import CheckOptions
from memcheck.cli.write import screen_of, write_stdout
from memcheck.edge.screen import put
from memcheck.report.screens import statistics
from memcheck.result import Report

FOR_PEOPLE = ("full", "concise", "brief", "github")
"""Formats that allow other text in the same output."""


def write_statistics(report: Report, options: CheckOptions) -> None:
    """Behind a report for people; on stderr if stdout carries a report for programs."""
    shown = [output.format for output in options.outputs if output.file is None]
    if not all(form in FOR_PEOPLE for form in shown):
        put(sys.stderr, statistics(report, screen_of(sys.stderr, options.color)))
        return
    silent = options.quiet and not any(plan.findings for plan in report.plans)
    gap = "\n" if shown and not silent else ""
    write_stdout(gap + statistics(report, screen_of(sys.stdout, options.color)))
