"""There is no memory model for what the plan asks.

## What it does

Reports a combination that the framework can run and that memcheck cannot estimate, at the key that asks for it:

- a model that the framework does not build, or a part of it without a forward pass here;
- adapters on a `rough` model;
- an offloading mode whose buffers are not modelled.

## Why it matters

A number for something else would be worse than none. The plan is not estimated, so it does not pass.

## Example

    model: {rough: {parameters: 700M, layers: 32, hidden_size: 4096, activation_multiplier: 10}}
    training: {method: lora}   # which matrices get adapters is not known

## How to fix

The help line names the nearest plan that has a model. Otherwise exclude the file from the check.

## Options

None.

## Source

`memcheck/memory`.
"""

from __future__ import annotations

from memcheck.plan.codes import NO_MEMORY_MODEL
from memcheck.rules.file_rule import file_rule

RULE = file_rule(NO_MEMORY_MODEL, __doc__)
