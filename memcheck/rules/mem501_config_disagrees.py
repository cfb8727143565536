"""The plan and the framework config that is its source say different things.

## What it does

Compares every value that a plan with `source:` states itself with the config's value, and the configs with each other.

## Why it matters

One of them runs and the other one was checked. A plan may add what a config cannot say (the GPUs, the model of a
DeepSpeed job); what the config does say, it says for both.

## Example

    source: {deepspeed: ./ds.json}     # "stage": 3
    parallelism: {zero_stage: 2}

## How to fix

Leave the value out of the plan, or mend the config. Both places are shown.

## Options

None.

## Source

The config, at the line shown; which key means what is in docs/reference/configs.md.
"""

from __future__ import annotations

from memcheck.plan.codes import CONFIG_DISAGREES
from memcheck.rules.file_rule import file_rule

RULE = file_rule(CONFIG_DISAGREES, __doc__)
