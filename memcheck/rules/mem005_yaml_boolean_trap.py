"""An unquoted word that only some YAML readers take for a boolean.

## What it does

Reports `yes`, `no`, `on` and `off` in place of true or false.

## Why it matters

YAML 1.1 readers make booleans of them, YAML 1.2 readers text.

## Example

    training: {compile: on}

## How to fix

Write `true` or `false`. `--fix` does it.

## Options

None.

## Source

YAML 1.1 type bool against YAML 1.2 section 10.3.2.
"""

from __future__ import annotations

from memcheck.plan.codes import BOOLEAN_TRAP
from memcheck.rules.file_rule import file_rule

RULE = file_rule(BOOLEAN_TRAP, __doc__)
