"""A value has the wrong type.

## What it does

Reports text where a number belongs, a number where a mapping belongs, and so on.

## Why it matters

Guessing what was meant would hide mistakes.

## Example

    training: {sequence_length: long}

## How to fix

Write a value of the type that the finding names. `128k` is written 131072.

## Options

None.

## Source

`schemas/plan.schema.json`.
"""

from __future__ import annotations

from memcheck.plan.codes import WRONG_TYPE
from memcheck.rules.file_rule import file_rule

RULE = file_rule(WRONG_TYPE, __doc__)
