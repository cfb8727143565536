"""The interleaved schedule cannot run this number of micro-batches.

## What it does

Checks the micro-batches per step of an interleaved schedule, which works in groups. They are
`gradient_accumulation_steps`, or `training.options.micro_batches_per_run` under torch's schedules.

- Megatron needs at least one full group. A last group may not be smaller than the number of pipeline stages.
- torch makes rounds of equal size: at least as many micro-batches as stages in each, or one smaller round.

## Why it matters

Stages wait for each other's activations in the order that the schedule lays down. With a group that cannot be
filled the order breaks, and Megatron stops at the first step. Too few micro-batches for another schedule only leave
stages idle, which is MEM217's.

## Example

    parallelism: {pipeline: 4, pipeline_schedule: interleaved-1f1b, virtual_stages: 2}
    training: {gradient_accumulation_steps: 6}      # a group of 4, and 2 that are left

## How to fix

Raise `gradient_accumulation_steps` (or `global_batch_size`), or use fewer stages.

## Options

Megatron: `microbatch_group_size_per_virtual_pipeline_stage`.

## Source

`megatron/core/pipeline_parallel/schedules.py` (final micro-batch group); torch `distributed/pipelining/schedules.py`
(ScheduleInterleaved1F1B, `number_of_rounds`).
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.plan.finding import Finding
from memcheck.rules.types import Rule, RuleContext, stated
from memcheck.rules.when import pipelined


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding for an impossible interleaving."""
    job = context.training
    if job is None or job.layout.pipeline == 1:
        return
    stages, count = job.layout.pipeline, job.run_micro_batches
    interleaved = job.layout.pipeline_schedule == "interleaved-1f1b" and job.layout.virtual_stages > 1
    group = job.option("microbatch_group_size_per_virtual_pipeline_stage") or stages
    wrong = isinstance(group, int) and (count < group or 0 < count % group < stages)
    if job.framework.data_parallel == "torch":
        wrong = count % max(1, count // stages) > 0
    if interleaved and isinstance(group, int) and wrong:
        run = "step" if count == job.gradient_accumulation_steps else "run of the schedule"
        batches = f"{count} micro-batch{'es' if count > 1 else ''} per {run}"
        pointer = stated(context.document, "/training/gradient_accumulation_steps", "/training/global_batch_size")
        related = (("stages", "/parallelism/pipeline"), ("schedule", "/parallelism/pipeline_schedule"))
        yield RULE.finding(
            context,
            f"an interleaved pipeline of {stages} stages cannot run {batches}: groups of {group} leave {count % group}",
            pointer,
            help=f"use a multiple of {group}",
            related=related,
        )


RULE = Rule(
    code="MEM211",
    name="pipeline-micro-batches",
    severity="error",
    summary="The interleaved schedule cannot run this number of micro-batches.",
    doc=__doc__,
    check=check,
    when=pipelined,
    blocking=True,
    batch=True,
)
