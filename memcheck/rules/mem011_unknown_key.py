"""The plan format has no such key.

## What it does

Reports every key that the schema does not have, with the closest key that it has. For a key of another tool
(transformers, PEFT, TRL, Accelerate, DeepSpeed, Megatron-LM, vLLM, a cloud) it gives the plan's key and value. If the
key has none, it gives the reason why it can be left out.

## Why it matters

A misspelt key would be ignored, and its default used instead: the prediction would be of another plan.

## Example

    training: {micro_batchsize: 4}

## How to fix

Correct the key; `--fix` does where only one key is close. A framework's own knobs go under `training.options`.

## Options

None.

## Source

`schemas/plan.schema.json`.
"""

from __future__ import annotations

from memcheck.plan.codes import UNKNOWN_KEY
from memcheck.rules.file_rule import file_rule

RULE = file_rule(UNKNOWN_KEY, __doc__)
