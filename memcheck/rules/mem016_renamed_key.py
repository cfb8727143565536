"""A key has the name that another tool gives it.

## What it does

Reports a key that a plan does not have, but that another tool has for exactly the same setting:
`per_device_train_batch_size`, `max_seq_length`, `tensor_model_parallel_size`, `gradient_checkpointing`. What only
resembles a key is MEM011's. A key of the plan format that gets another name in a later version is reported so, too.

## Why it matters

Plans are written from launch scripts and configs that are at hand. An unknown key would be ignored, and the plan's
default used instead of what was pasted.

## Example

    training:
      per_device_train_batch_size: 4      # transformers; here it is micro_batch_size
      gradient_checkpointing: true        # here it is activation_checkpointing: full

## How to fix

`--fix` writes the plan's key, and the plan's value where that is written differently. It leaves the line alone where
the plan states the same setting twice, or where the value has no equal.

## Options

None. A framework's own knobs keep their names under `training.options`.

## Source

The tools' own documentation; the table is in [the plan format](../plan-format.md#keys-under-the-names-of-other-tools).
"""

from __future__ import annotations

from memcheck.plan.codes import RENAMED_KEY
from memcheck.rules.file_rule import file_rule

RULE = file_rule(RENAMED_KEY, __doc__)
