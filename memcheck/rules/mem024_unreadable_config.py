"""The model's config file cannot be read.

## What it does

Reports a `model.config` that is missing, is no JSON, or holds no JSON object.

## Why it matters

Without the model's dimensions nothing can be computed.

## Example

    model: {config: ./no-such/config.json}

## How to fix

Correct the path; it is relative to the plan.

## Options

None.

## Source

The Hugging Face `config.json` format.
"""

from __future__ import annotations

from memcheck.plan.codes import UNREADABLE_CONFIG
from memcheck.rules.file_rule import file_rule

RULE = file_rule(UNREADABLE_CONFIG, __doc__)
