"""The sequence cannot be split over the context and tensor ranks.

## What it does

Checks `sequence_length` against `2 * context` (causal load balancing gives each rank two chunks; Ulysses only needs
`context`), and what is left against `tensor` when sequence parallelism is on.

## Why it matters

The job stops at the first batch.

## Example

    parallelism: {context: 8}
    training: {sequence_length: 8200}      # 16 chunks of 512.5 tokens

## How to fix

Take a sequence length that is a multiple of the product.

## Options

None.

## Source

`megatron/training/arguments.py` ("seq-length should be a multiple of 2 * context-parallel-size"), torchtitan
`distributed/parallel_dims.py: seq_len_divisor`.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.plan.finding import Finding
from memcheck.rules.budget import multiples
from memcheck.rules.types import Rule, RuleContext
from memcheck.rules.when import split


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding when the sequence length is no multiple of what splits it."""
    job, framework = context.training, context.framework
    if job is None or framework is None:
        return
    layout = job.layout
    parts, formula = 1, []
    if layout.context > 1:
        chunks = 2 if framework.context_parallel == "ring" else 1
        parts *= chunks * layout.context
        formula.append(f"{'2 * ' if chunks == 2 else ''}context {layout.context}")
    if layout.sequence and layout.tensor > 1:
        parts *= layout.tensor
        formula.append(f"tensor {layout.tensor}")
    if job.sequence_length % parts == 0:
        return
    yield RULE.finding(
        context,
        f"sequence_length {job.sequence_length} is not a multiple of {' * '.join(formula)} = {parts}",
        "/training/sequence_length",
        help=f"use {multiples(job.sequence_length, parts)}",
        related=(("context", "/parallelism/context"), ("tensor", "/parallelism/tensor")),
    )


RULE = Rule(
    code="MEM210",
    name="sequence-not-divisible",
    severity="error",
    summary="The sequence cannot be split over the context and tensor ranks.",
    doc=__doc__,
    check=check,
    when=split,
    blocking=True,
    batch=True,
)
