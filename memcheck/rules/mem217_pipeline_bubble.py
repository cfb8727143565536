"""The pipeline idles for more than a third of the step.

## What it does

Works out the share of a step in which stages wait: `(p - 1) / (v * m + p - 1)` for `p` stages, `m` micro-batches
(`gradient_accumulation_steps`) and `v` virtual stages. Reports more than a third, which means fewer than about two
micro-batches per stage. Schedules that fill the gap with weight gradients (`zero-bubble`, `dualpipe`) are left alone.

## Why it matters

Idle GPUs are paid for like busy ones. With as many micro-batches as stages, nearly half of the step is waiting.

## Example

    parallelism: {pipeline: 8}
    training: {gradient_accumulation_steps: 2}      # 78 % idle

## How to fix

Raise `gradient_accumulation_steps` (or `global_batch_size`), use fewer stages, or an interleaved schedule.

## Options

None. The third is a rule of thumb; a job whose global batch may not grow can have good reasons to wait.

## Source

Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", section 2.2.
The bubble is `(p - 1) / m` of the computing time, and `1 / v` of that with `v` virtual stages.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.plan.finding import Finding
from memcheck.rules import REVIEW
from memcheck.rules.budget import percent
from memcheck.rules.types import HEURISTIC, Rule, RuleContext, stated

MOST_IDLE = 1 / 3
SCHEDULES = ("gpipe", "1f1b", "interleaved-1f1b")


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding for a pipeline that waits more than it should."""
    job = context.training
    if job is None or job.layout.pipeline == 1 or job.layout.pipeline_schedule not in SCHEDULES:
        return
    stages, count = job.layout.pipeline, job.run_micro_batches
    interleaved = job.layout.virtual_stages if job.layout.pipeline_schedule == "interleaved-1f1b" else 1
    idle = (stages - 1) / (interleaved * count + stages - 1)
    if idle <= MOST_IDLE:
        return
    run = "step" if count == job.gradient_accumulation_steps else "run of the schedule"
    batches = f"{count} micro-batch{'es' if count > 1 else ''} per {run}"
    yield RULE.finding(
        context,
        f"{batches} for a pipeline of {stages} stages: it idles {percent(idle)} of the time",
        stated(context.document, "/training/gradient_accumulation_steps", "/training/global_batch_size"),
        help=f"accumulate over {2 * stages} micro-batches or more, or use fewer stages",
        related=(("stages", "/parallelism/pipeline"), ("schedule", "/parallelism/pipeline_schedule")),
    )


RULE = Rule(
    code="MEM217",
    name="pipeline-bubble",
    severity="warning",
    summary="The pipeline idles for more than a third of the step.",
    doc=__doc__,
    check=check,
    precision=HEURISTIC,
    profile=REVIEW,
)
