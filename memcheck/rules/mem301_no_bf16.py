"""The GPU has no bf16 arithmetic.

## What it does

Reports a bf16 recipe on NVIDIA GPUs before Ampere (compute capability 8.0) and AMD GPUs before gfx908.

## Why it matters

transformers refuses `bf16: true` there; plain PyTorch falls back to emulation that is slower than fp32.

## Example

    hardware: {gpu: t4}
    training: {precision: bf16-mixed}

## How to fix

Use `precision: fp16-mixed`, or another GPU. The state is the same size; only the loss scaling differs.

## Options

None.

## Source

transformers `training_args.py` ("Your setup doesn't support bf16/gpu. You need Ampere+ GPU with cuda>=11.0"); torch
`torch.cuda.is_bf16_supported`.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.catalog.names import lacks_bf16
from memcheck.plan.finding import Finding
from memcheck.rules.types import Rule, RuleContext, stated
from memcheck.rules.when import no_bf16


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding for a bf16 recipe on a GPU that is known to lack it."""
    job, gpu = context.training, context.resolved.gpu
    if job is None or "bf16" not in (job.recipe.compute, job.recipe.params) or not lacks_bf16(gpu):
        return
    if job.recipe.compute == "bf16":
        what, where = f"{job.recipe.recipe} needs", "/training/precision"
        help = "use `precision: fp16-mixed`, or a GPU from Ampere on"
    else:
        what, where = "weights in bf16 need", stated(context.document, "/training/precision/params")
        help = "load them in fp16 (`precision.params`, a script's `torch_dtype`), or use a GPU from Ampere on"
    yield RULE.finding(
        context,
        f"{what} bf16 arithmetic, which {gpu.name} ({gpu.arch}) does not have",
        where,
        help=help,
        related=(("the GPU", "/hardware/gpu"),),
    )


RULE = Rule(
    code="MEM301",
    name="no-bf16",
    severity="error",
    summary="The GPU has no bf16 arithmetic.",
    doc=__doc__,
    check=check,
    when=no_bf16,
)
