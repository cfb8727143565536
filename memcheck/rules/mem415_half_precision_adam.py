"""Adam keeps its moments in fp16.

## What it does

Reports `adam` and `adamw` whose states are fp16 (`precision: fp16-pure`), unless fused kernels or 8-bit states do the
arithmetic elsewhere.

## Why it matters

The smallest number that fp16 has is 6.0e-8. Adam's second moment is a mean of squares: a gradient of 1e-3 adds 1e-9
with the usual `beta2` of 0.999, which is 0. And its `eps` of 1e-8, which is there to keep the division finite, is 0 as
well. The quotient is then infinite or no number, and so is the weight from the first step on.

## Example

    training: {precision: fp16-pure, optimizer: {name: adamw, implementation: foreach}}

## How to fix

Use `precision: fp16-mixed`, whose states are fp32, or `bf16-pure`, which has the range of fp32. Who must stay in fp16
raises `eps` to 1e-4 in the training code and accepts the finding.

## Options

None. `eps` is no key of a plan, so that this is a rule of thumb.

## Source

torch `torch/optim/adam.py`, `_single_tensor_adam` and `_multi_tensor_adam`: `exp_avg_sq` has the parameter's dtype, and
`denom = exp_avg_sq.sqrt() / bias_correction2_sqrt + eps` is rounded to it. The fused kernel computes in fp32.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.plan.finding import Finding
from memcheck.rules import REVIEW
from memcheck.rules.types import HEURISTIC, Rule, RuleContext

MOMENTS = ("adam", "adamw")


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding for moments that fp16 cannot hold."""
    job = context.training
    if job is None or job.optimizer.name not in MOMENTS or job.optimizer.implementation == "fused":
        return
    if job.recipe.optimizer_states != "fp16":
        return
    yield RULE.finding(
        context,
        f"{job.optimizer.name} ({job.optimizer.implementation}) squares gradients in fp16, where anything below "
        "6.0e-8, its eps of 1e-8 included, is 0",
        "/training/precision",
        help="use `fp16-mixed` or `bf16-pure`",
        related=(("the optimizer", "/training/optimizer"),),
    )


RULE = Rule(
    code="MEM415",
    name="half-precision-adam",
    severity="warning",
    summary="Adam keeps its moments in fp16.",
    doc=__doc__,
    check=check,
    precision=HEURISTIC,
    profile=REVIEW,
)
