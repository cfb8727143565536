"""The global batch is no multiple of what one pass over all ranks takes.

## What it does

Checks `global_batch_size % (micro_batch_size * data)`.

## Why it matters

Gradient accumulation counts whole passes. Frameworks stop, or train with another batch than the plan says.

## Example

    parallelism: {data: 8}
    training: {micro_batch_size: 4, global_batch_size: 100}      # 3.125 passes of 32

## How to fix

Take a multiple of `micro_batch_size * data`.

## Options

None.

## Source

`megatron/core/num_microbatches_calculator.py` ("global batch size is not divisible by micro batch size times data
parallel size").
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.plan.finding import Finding
from memcheck.rules.budget import multiples
from memcheck.rules.types import Rule, RuleContext
from memcheck.rules.when import states_global_batch


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding when whole passes do not make up the global batch."""
    job, stated = context.training, context.plan.training
    if job is None or stated is None or stated.global_batch_size is None:
        return
    if stated.gradient_accumulation_steps is not None:
        return
    size, each = stated.global_batch_size, job.micro_batch_size * job.layout.data
    if size % each == 0:
        return
    yield RULE.finding(
        context,
        f"global_batch_size {size} is not a multiple of micro_batch_size {job.micro_batch_size} * data "
        f"{job.layout.data} = {each}",
        "/training/global_batch_size",
        help=f"use {multiples(size, each)}",
        related=(("per GPU", "/training/micro_batch_size"), ("data", "/parallelism/data")),
    )


RULE = Rule(
    code="MEM402",
    name="global-batch-not-divisible",
    severity="error",
    summary="The global batch is no multiple of what one pass over all ranks takes.",
    doc=__doc__,
    check=check,
    when=states_global_batch,
    batch=True,
)
