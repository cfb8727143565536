"""There is no memory model for this kind of model.

## What it does

Reports a `model_type` that no family of memcheck reads.

## Why it matters

Another family's arithmetic would give a number, but not this model's.

## Example

    model: {architecture: {model_type: my-new-model, hidden_size: 4096}}

## How to fix

Use `rough` figures, or add a family (one file, see CONTRIBUTING.md).

## Options

None.

## Source

`memcheck/models/families`.
"""

from __future__ import annotations

from memcheck.plan.codes import UNSUPPORTED_ARCHITECTURE
from memcheck.rules.file_rule import file_rule

RULE = file_rule(UNSUPPORTED_ARCHITECTURE, __doc__)
