"""YAML reads a number differently from what it looks like.

## What it does

Reports `1e-5` and `1e5` (text to YAML 1.1: no dot), `012` (octal 10), `1:30` (sexagesimal 90) and the like where a
number stands.

## Why it matters

The value is silently another one, or text where a number belongs.

## Example

    training: {sequence_length: 010000}      # 4096

## How to fix

Write the number plainly: `1.0e-5`, `12`, `90`. `--fix` does it where only one reading makes sense.

## Options

None.

## Source

YAML 1.1 types int and float; PyYAML `resolver.py`.
"""

from __future__ import annotations

from memcheck.plan.codes import NUMBER_TRAP
from memcheck.rules.file_rule import file_rule

RULE = file_rule(NUMBER_TRAP, __doc__)
