"""A required key is missing.

## What it does

Reports keys without which the memory cannot be computed: the model, the GPU, the sequence length.

## Why it matters

memcheck never assumes a value that decides sizes without saying so, and for these no default is sensible.

## Example

    training: {micro_batch_size: 1}      # no sequence_length

## How to fix

Add the key.

## Options

None.

## Source

`schemas/plan.schema.json`.
"""

from __future__ import annotations

from memcheck.plan.codes import MISSING_KEY
from memcheck.rules.file_rule import file_rule

RULE = file_rule(MISSING_KEY, __doc__)
