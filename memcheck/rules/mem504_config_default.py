"""The framework config leaves values to its framework.

## What it does

Lists the values that neither the plan nor its `source` says, and whose default was taken.

## Why it matters

A config that is silent still decides: torchtitan recomputes every second layer unless told otherwise, DeepSpeed trains
in fp32. With a DeepSpeed config, the default of the trainer may not be what the script sets.

## Example

    source: {deepspeed: ./ds.json}     # nothing about gradient_clipping

## How to fix

Nothing, if the defaults are what runs; otherwise state the value in the plan or in the config.

## Options

None.

## Source

The framework's own defaults, at the releases that docs/reference/configs.md names.
"""

from __future__ import annotations

from memcheck.plan.codes import CONFIG_DEFAULT
from memcheck.rules.file_rule import file_rule

RULE = file_rule(CONFIG_DEFAULT, __doc__)
