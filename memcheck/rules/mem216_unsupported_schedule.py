"""The framework does not have this pipeline schedule, or the schedule lacks what it interleaves.

## What it does

Compares `pipeline_schedule` with the framework's own schedules. Also reports:

- an interleaved schedule over one stage per rank (`virtual_stages: 1`);
- DualPipe with any number of stages per rank but two;
- torch's zero-bubble and DualPipe schedules over compiled stages.

## Why it matters

The schedule decides how many micro-batches of activations are alive at once. Under 1F1B a stage keeps one for itself
and one for each stage after it; under GPipe a stage keeps all of them. Schedules that split the backward pass
(`zero-bubble`, `dualpipe`) cannot split that of a compiled module: torch raises an error before the first step.

## Example

    parallelism: {pipeline: 4, pipeline_schedule: gpipe}
    training: {framework: megatron}

## How to fix

Take one of the schedules that the finding lists. For an interleaved one, set `virtual_stages` to 2 or more. For one
that splits the backward pass, leave `compile` off.

## Options

None.

## Source

torch `distributed/pipelining/schedules.py` (`ScheduleDualPipeV`: "requires exactly 2 stages per rank";
`_check_torch_compile_compatibility`: "schedule is not supported with stage modules that have used torch.compile");
`megatron/core/pipeline_parallel/schedules.py` (1F1B, with and without interleaving).
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.job.types import TrainingJob
from memcheck.plan.finding import Finding
from memcheck.rules.budget import listed
from memcheck.rules.types import Rule, RuleContext
from memcheck.rules.when import pipelined

SPLIT_BACKWARD = frozenset({"zero-bubble", "dualpipe"})
"""Schedules that run the gradients of inputs and of weights at different times."""

STAGES_OF_A_V = 2


def check(context: RuleContext) -> Iterator[Finding]:
    """One finding for a schedule that cannot run."""
    framework, layout = context.framework, context.layout
    if framework is None or layout.pipeline == 1 or not framework.parallelism.schedules:
        return
    schedule = layout.pipeline_schedule
    if schedule not in framework.parallelism.schedules:
        message = f"{framework.title} has no pipeline schedule `{schedule}`"
        help = f"its schedules: {listed(framework.parallelism.schedules)}"
    elif schedule == "interleaved-1f1b" and layout.virtual_stages == 1:
        message = "an interleaved schedule with one stage per rank has nothing to interleave"
        help = "set `virtual_stages: 2`, or use `pipeline_schedule: 1f1b`"
    elif schedule == "dualpipe" and layout.virtual_stages != STAGES_OF_A_V:
        message = f"`dualpipe` runs two stages on each rank, one from each end, not {layout.virtual_stages}"
        help = "set `virtual_stages: 2`"
    elif schedule in SPLIT_BACKWARD and context.training is not None and _compiled(context.training):
        message = f"`{schedule}` splits the backward pass, which torch refuses for compiled stages"
        help = "use `pipeline_schedule: interleaved-1f1b`, or leave `training.compile` off"
    else:
        return
    yield RULE.finding(
        context,
        message,
        "/parallelism/pipeline_schedule",
        help=help,
        related=(("the framework", "/training/framework"), ("virtual stages", "/parallelism/virtual_stages")),
    )


def _compiled(job: TrainingJob) -> bool:
    """Whether stages are compiled modules; torchtitan's graph trainer compiles its own passes instead."""
    return job.compiles("model") and "graph_trainer" not in str(job.option("module") or "")


RULE = Rule(
    code="MEM216",
    name="unsupported-schedule",
    severity="error",
    summary="The framework does not have this pipeline schedule.",
    doc=__doc__,
    check=check,
    when=pipelined,
    blocking=True,
)
