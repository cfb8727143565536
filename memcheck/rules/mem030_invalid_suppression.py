"""A suppressing comment lacks a reason or names no rule.

## What it does

Reports `# memcheck: ignore` without rules in brackets, with a rule that does not exist, without a reason behind the
bracket, or with an `until:` that is no date. Such a comment hides nothing.

## Why it matters

A finding that was accepted without a word cannot be reviewed, and nobody dares to remove the comment later.

## Example

    zero_stage: 3   # memcheck: ignore[MEM208]

## How to fix

Write `# memcheck: ignore[MEM208] why this is accepted`, on the line of the finding or on the line above it. Several
rules are separated by commas; `until: 2026-12-31` behind the reason ends it after that day.

## Options

None.

## Source

`memcheck/config/suppressions.py`.
"""

from __future__ import annotations

from memcheck.plan.codes import INVALID_SUPPRESSION
from memcheck.rules.file_rule import file_rule

RULE = file_rule(INVALID_SUPPRESSION, __doc__)
