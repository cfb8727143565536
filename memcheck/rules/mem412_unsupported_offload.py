"""The framework cannot offload this.

## What it does

Checks `optimizer.offload` and `offload.parameters` against the framework: parameters need full sharding (`zero_stage:
3`), NVMe needs DeepSpeed, DeepSpeed's optimizer offload needs a ZeRO stage, and FSDP2 offloads parameters, gradients
and states together.

## Why it matters

The setting is refused or ignored, and the memory that it should free stays in use.

## Example

    parallelism: {zero_stage: 1}
    training: {framework: deepspeed, offload: {parameters: cpu}}

## How to fix

Set the stage or the framework that the finding names.

## Options

None.

## Source

DeepSpeed `runtime/zero/config.py` ("Valid only with stage 3"); torch `CPUOffloadPolicy`; Megatron
`optimizer_cpu_offload`.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.job.framework import Framework
from memcheck.job.types import TrainingJob
from memcheck.plan.finding import Finding
from memcheck.rules.types import Rule, RuleContext
from memcheck.rules.when import offloads


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding per offload that cannot be had."""
    job, framework = context.training, context.framework
    if job is None or framework is None:
        return
    for what, place, pointer in (
        ("the optimizer", job.optimizer.offload, "/training/optimizer/offload"),
        ("parameters", job.parameter_offload, "/training/offload/parameters"),
    ):
        reason = _reason(job, framework, what, place)
        if reason:
            message, help = reason
            related = (("the framework", "/training/framework"), ("the stage", "/parallelism/zero_stage"))
            yield RULE.finding(context, message, pointer, help=help, related=related)


def _reason(job: TrainingJob, framework: Framework, what: str, place: str) -> tuple[str, str] | None:
    """Return why an offload cannot be had, and what to do; None if it can."""
    stage, name = job.layout.zero_stage, framework.name
    if place == "none" or job.optimizer.name.startswith("paged-"):
        return None
    if place not in framework.offload_places:
        return f"{name} cannot offload {what} to NVMe", "use `cpu`, or `framework: deepspeed`"
    if what == "parameters" and stage != 3:
        return f"offloading parameters needs zero_stage 3, and the plan has {stage}", "set `zero_stage: 3`"
    if what == "parameters" and not framework.offloads_parameters:
        return f"{name.capitalize()} does not offload parameters", "offload the optimizer: `optimizer: {offload: cpu}`"
    if what != "parameters" and stage == 0 and framework.data_parallel == "zero":
        return "DeepSpeed offloads the optimizer only with a ZeRO stage", "set `zero_stage: 1` or higher"
    if what != "parameters" and stage != 3 and framework.data_parallel == "torch":
        return f"{name} offloads the optimizer only with FSDP2 (zero_stage 3)", "set `zero_stage: 3`"
    return None


RULE = Rule(
    code="MEM412",
    name="unsupported-offload",
    severity="error",
    summary="The framework cannot offload this.",
    doc=__doc__,
    check=check,
    when=offloads,
)
