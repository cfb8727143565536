"""The document is not a plan.

## What it does

Reports a document that carries the plan mark but is no mapping, or has a version that memcheck does not know.

## Why it matters

Without the version, nothing says how the file is to be read.

## Example

    memcheck: 2

## How to fix

Write `memcheck: 1`, or update memcheck.

## Options

None.

## Source

`schemas/plan.schema.json`.
"""

from __future__ import annotations

from memcheck.plan.codes import INVALID_PLAN
from memcheck.rules.file_rule import file_rule

RULE = file_rule(INVALID_PLAN, __doc__)
