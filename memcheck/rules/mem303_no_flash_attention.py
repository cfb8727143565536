"""FlashAttention does not run on this GPU, in this precision, or at this head size.

## What it does

Reports `attention: flash` on NVIDIA GPUs before Ampere, with an fp32 recipe, and for heads wider than 256.

## Why it matters

The kernel refuses. With `attention: sdpa` PyTorch picks another kernel silently, and memory may grow with the square
of the sequence length.

## Example

    hardware: {gpu: v100-32gb}
    training: {precision: fp16-mixed, attention: flash}

## How to fix

Use `attention: sdpa`, which has a memory-efficient kernel for these GPUs.

## Options

None.

## Source

flash-attention README ("Ampere, Ada, or Hopper GPUs", "fp16 and bf16", "all head dimensions up to 256").
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.catalog.names import compute_capability
from memcheck.models.types import Attention
from memcheck.plan.finding import Finding
from memcheck.rules.types import Rule, RuleContext
from memcheck.rules.when import flash

WIDEST_HEAD = 256


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding for the first reason why the kernel refuses."""
    job, framework, gpu = context.training, context.framework, context.resolved.gpu
    if job is None or framework is None or job.attention != "flash":
        return
    capability = compute_capability(gpu)
    model = context.architecture
    widths = [b.mixer.head_dim for b, _ in model.blocks if isinstance(b.mixer, Attention)] if model else []
    if capability is not None and capability < 80:
        reason = f"needs Ampere or later; {gpu.name} is {gpu.arch}"
    elif job.recipe.compute == "fp32":
        reason = "computes in fp16 or bf16 only, and this recipe computes in fp32"
    elif widths and max(widths) > WIDEST_HEAD and not framework.transformer_engine:
        reason = f"takes heads up to {WIDEST_HEAD} wide; this model has {max(widths)}"
    else:
        return
    yield RULE.finding(
        context,
        f"FlashAttention {reason}",
        "/training/attention",
        help="use `attention: sdpa`",
        related=(("the GPU", "/hardware/gpu"), ("precision", "/training/precision"), ("the model", "/model")),
    )


RULE = Rule(
    code="MEM303",
    name="no-flash-attention",
    severity="error",
    summary="FlashAttention does not run on this GPU or in this precision.",
    doc=__doc__,
    check=check,
    when=flash,
)
