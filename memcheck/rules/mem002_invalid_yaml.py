r"""The file is not valid YAML.

## What it does

Reports the place at which the YAML parser gave up: an unclosed bracket, a tab in the indentation, a colon without a
space, an undefined anchor.

## Why it matters

A plan that cannot be parsed cannot be checked, and must not pass unchecked.

## Example

    training:
      \tmicro_batch_size: 1      # indented by a tab

## How to fix

Mend the line that the finding names; the fault may be on the line above.

## Options

None.

## Source

YAML 1.1, as PyYAML and libyaml read it.
"""

from __future__ import annotations

from memcheck.plan.codes import INVALID_YAML
from memcheck.rules.file_rule import file_rule

RULE = file_rule(INVALID_YAML, __doc__)
