"""The framework config that is the plan's source cannot be used.

## What it does

Reports a `source` that memcheck cannot use:

- the file is missing, cannot be parsed or lies outside the repository;
- memcheck does not read the configs of this framework;
- the config leaves something open that the plan does not state either.

A file of another kind is named: a job of reinforcement learning, a Kubernetes Job, a vLLM server, Python. The help
has the command that goes on.

## Why it matters

Without the config the plan is half of a job, and nothing is estimated.

## Example

    source: {deepspeed: ./gone.json}

## How to fix

Correct the path, or state in the plan what the message asks for. The configs that are read:
docs/reference/configs.md.

## Options

None.

## Source

The config, at the line shown; docs/reference/configs.md says what is read.
"""

from __future__ import annotations

from memcheck.plan.codes import UNUSABLE_SOURCE
from memcheck.rules.file_rule import file_rule

RULE = file_rule(UNUSABLE_SOURCE, __doc__)
