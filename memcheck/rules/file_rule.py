"""Rules whose findings are made while the file is read: they have a page and an example, but no check of their own."""

from __future__ import annotations

from memcheck.plan.codes import Code
from memcheck.rules.types import Rule


def file_rule(code: Code, doc: str) -> Rule:
    """The record of a file code."""
    return Rule(code=code.code, name=code.name, severity=code.severity, summary=code.summary, doc=doc)
