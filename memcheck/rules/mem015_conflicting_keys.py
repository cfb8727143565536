"""Keys that exclude each other are both set.

## What it does

Reports `training` together with `inference`, `gradient_accumulation_steps` together with `global_batch_size`, and two
ways to give the model.

## Why it matters

Only one of the two can hold.

## Example

    training: {gradient_accumulation_steps: 4, global_batch_size: 64}

## How to fix

Remove one of the two.

## Options

None.

## Source

`schemas/plan.schema.json`.
"""

from __future__ import annotations

from memcheck.plan.codes import CONFLICTING_KEYS
from memcheck.rules.file_rule import file_rule

RULE = file_rule(CONFLICTING_KEYS, __doc__)
