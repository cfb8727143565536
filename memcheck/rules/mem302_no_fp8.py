"""The GPU has no fp8 arithmetic.

## What it does

Reports `fp8-mixed` on NVIDIA GPUs before Ada and Hopper (compute capability 8.9) and AMD GPUs before MI300.

## Why it matters

TransformerEngine and torchao refuse to build fp8 layers there.

## Example

    hardware: {gpu: a100-80gb}
    training: {precision: fp8-mixed}

## How to fix

Use `precision: bf16-mixed`, or another GPU. fp8 recipes keep their state in the same dtypes and add fp8 copies.

## Options

None.

## Source

TransformerEngine `fp8.py` ("Device compute capability 8.9 or higher required for FP8 execution").
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.catalog.names import lacks_fp8
from memcheck.plan.finding import Finding
from memcheck.rules.types import Rule, RuleContext
from memcheck.rules.when import fp8


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding for an fp8 recipe on a GPU that is known to lack it."""
    job, gpu = context.training, context.resolved.gpu
    if job is None or job.recipe.recipe != "fp8-mixed" or not lacks_fp8(gpu):
        return
    yield RULE.finding(
        context,
        f"fp8-mixed needs fp8 arithmetic, which {gpu.name} ({gpu.arch}) does not have",
        "/training/precision",
        help="use `precision: bf16-mixed`, or a GPU from Ada, Hopper or MI300 on",
        related=(("the GPU", "/hardware/gpu"),),
    )


RULE = Rule(
    code="MEM302",
    name="no-fp8",
    severity="error",
    summary="The GPU has no fp8 arithmetic.",
    doc=__doc__,
    check=check,
    when=fp8,
)
