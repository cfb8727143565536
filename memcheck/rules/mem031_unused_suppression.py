"""A suppressing comment hides nothing.

## What it does

Warns about a rule named in `# memcheck: ignore[...]` that finds nothing on that line. Only plans that were judged as
they are written count: not with `--gpu` or thresholds on the command line, not for rules that were not selected.

## Why it matters

The comment would hide the next finding on that line, which no reviewer has accepted.

## Example

    zero_stage: 0   # memcheck: ignore[MEM208] one GPU until the cluster is back

## How to fix

Remove it; `--fix` does.

## Options

None.

## Source

`memcheck/config/suppressions.py`.
"""

from __future__ import annotations

from memcheck.plan.codes import UNUSED_SUPPRESSION
from memcheck.rules.file_rule import file_rule

RULE = file_rule(UNUSED_SUPPRESSION, __doc__)
