"""The catalog has no such GPU.

## What it does

Reports a GPU name that is in the catalog under no name or alias, with the closest ones that are.

## Why it matters

Without its memory nothing can be compared.

## Example

    hardware: {gpu: h100-90gb}

## How to fix

Correct the name (`memcheck list gpus`), or state the memory: `gpu: {name: mi455x, memory_gib: 431.2}`.

## Options

None.

## Source

The catalog.
"""

from __future__ import annotations

from memcheck.plan.codes import UNKNOWN_GPU
from memcheck.rules.file_rule import file_rule

RULE = file_rule(UNKNOWN_GPU, __doc__)
