"""A value is outside of what its key allows.

## What it does

Reports words that are not in a key's list, with the closest ones that are, and numbers outside of their range.

## Why it matters

Guessing what was meant would hide mistakes.

## Example

    training: {precision: bf16}      # bf16-mixed or bf16-pure: 16 or 8 bytes a parameter

## How to fix

Write one of the values that the finding lists.

## Options

None.

## Source

`schemas/plan.schema.json`.
"""

from __future__ import annotations

from memcheck.plan.codes import INVALID_VALUE
from memcheck.rules.file_rule import file_rule

RULE = file_rule(INVALID_VALUE, __doc__)
