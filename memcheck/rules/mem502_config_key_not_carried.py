"""A key of the framework config moves memory and is not carried over.

## What it does

Names keys of a plan's `source` that have no place in a plan, or that memcheck does not know.

## Why it matters

The estimate is made without the key. A key that is known to move memory, such as ZenFlow's buffers, makes it too low.
An unknown key may be a new feature of the framework, or a misspelt key that the framework ignores.

## Example

    source: {deepspeed: ./ds.json}     # "zenflow": {"topk_ratio": 0.1}

## How to fix

Leave the key out of the config, or accept the finding with a reason and keep room for it.

## Options

None.

## Source

The config, at the line shown.
"""

from __future__ import annotations

from memcheck.plan.codes import CONFIG_KEY_NOT_CARRIED
from memcheck.rules.file_rule import file_rule

RULE = file_rule(CONFIG_KEY_NOT_CARRIED, __doc__)
