"""The framework config that is the plan's source cannot be used.

## What it does

Reports a `source` that is missing, cannot be parsed, lies outside the repository, belongs to a framework whose configs
memcheck does not read, or leaves open what the plan does not say either.

A file that was named and cannot be judged is called by its name: a job of reinforcement learning, a Kubernetes Job, a
vLLM server, Python. The help has the command that goes on.

## Why it matters

Without it the plan is half of a job: nothing is judged.

## Example

    source: {deepspeed: ./gone.json}

## How to fix

Correct the path, or state in the plan what the message asks for. docs/import.md lists the configs that are read.

## Options

None.

## Source

The config, at the line shown; docs/import.md says what is read.
"""

from __future__ import annotations

from memcheck.plan.codes import UNUSABLE_SOURCE
from memcheck.rules.file_rule import file_rule

RULE = file_rule(UNUSABLE_SOURCE, __doc__)
