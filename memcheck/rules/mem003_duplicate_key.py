"""A mapping states the same key twice.

## What it does

Reports the second occurrence of a key in one mapping, and names the first.

## Why it matters

YAML readers keep the last value and drop the first without a word: the plan is not what its author reads.

## Example

    training:
      micro_batch_size: 1
      sequence_length: 4096
      micro_batch_size: 8

## How to fix

Remove one of the two.

## Options

None.

## Source

YAML 1.2 section 3.2.1.1: the keys of a mapping are unique.
"""

from __future__ import annotations

from memcheck.plan.codes import DUPLICATE_KEY
from memcheck.rules.file_rule import file_rule

RULE = file_rule(DUPLICATE_KEY, __doc__)
