"""A key of the model's config bears on sizes and is not understood.

## What it does

Reports keys of a configuration that change the model's size and that its family does not read, and keys with values
that it cannot use.

## Why it matters

Reading over such a key would give a wrong number with confidence.

## Example

    model: {name: llama-3.1-8b, overrides: {num_attention_heads: many}}

## How to fix

Correct the value; if the key is right, its family has to learn it (one file, see CONTRIBUTING.md).

## Options

None.

## Source

`memcheck/models/families`.
"""

from __future__ import annotations

from memcheck.plan.codes import UNREAD_CONFIG_KEY
from memcheck.rules.file_rule import file_rule

RULE = file_rule(UNREAD_CONFIG_KEY, __doc__)
