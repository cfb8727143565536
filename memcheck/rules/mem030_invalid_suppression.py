"""A suppressing comment lacks a reason or names no rule.

## What it does

Reports `# memcheck: ignore` without rules in brackets, with a rule that does not exist, without a reason after the
bracket, or with an `until:` that is no date. Such a comment hides nothing.

## Why it matters

A finding that was accepted without a reason cannot be reviewed. Later readers do not dare to remove the comment.

## Example

    zero_stage: 3   # memcheck: ignore[MEM208]

## How to fix

Write `# memcheck: ignore[MEM208] why this is accepted`, on the line of the finding or on the line above it. Several
rules are separated by commas. With `until: 2026-12-31` after the reason, the comment hides nothing after that day.

## Options

None.

## Source

`memcheck/config/suppressions.py`.
"""

from __future__ import annotations

from memcheck.plan.codes import INVALID_SUPPRESSION
from memcheck.rules.file_rule import file_rule

RULE = file_rule(INVALID_SUPPRESSION, __doc__)
