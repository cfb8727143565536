"""Sequence parallelism is on, but there is no tensor group to split the sequence over.

## What it does

Warns about `parallelism.sequence: true` with `tensor: 1`.

## Why it matters

Sequence parallelism in Megatron's sense splits the activations between the tensor-parallel regions over the *tensor*
ranks. With one of them it does nothing (Megatron switches it off). To split long sequences, set
`context`.

## Example

    parallelism: {sequence: true}

## How to fix

Remove it, set `tensor`, or use `context` for long sequences.

## Options

None.

## Source

`megatron/training/arguments.py` ("Disabling sequence parallelism because tensor model parallelism is disabled");
Korthikanti et al. 2022.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.plan.finding import Finding
from memcheck.rules.types import Rule, RuleContext
from memcheck.rules.when import states_sequence


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding for a stated sequence parallelism over one rank."""
    if context.plan.parallelism.sequence and context.layout.tensor == 1:
        yield RULE.finding(
            context,
            "sequence parallelism splits activations over the tensor ranks, and tensor is 1: it does nothing",
            "/parallelism/sequence",
            help="remove it, set `tensor`, or split the sequence with `context`",
        )


RULE = Rule(
    code="MEM209",
    name="sequence-parallel-without-tensor",
    severity="warning",
    summary="Sequence parallelism is on without tensor parallelism.",
    doc=__doc__,
    check=check,
    when=states_sequence,
)
