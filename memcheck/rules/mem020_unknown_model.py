"""The catalog has no such model.

## What it does

Reports a model name that is in the catalog under no name or alias, with the closest ones that are.

## Why it matters

Without the model's dimensions nothing can be computed.

## Example

    model: llama-3.1-8x

## How to fix

Correct the name (`memcheck list models`), or give the model's `config`, `architecture` or `rough` figures.

## Options

None.

## Source

The catalog.
"""

from __future__ import annotations

from memcheck.plan.codes import UNKNOWN_MODEL
from memcheck.rules.file_rule import file_rule

RULE = file_rule(UNKNOWN_MODEL, __doc__)
