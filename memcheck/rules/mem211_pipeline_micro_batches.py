"""The pipeline gets too few micro-batches, or a number that its schedule cannot run.

## What it does

Warns when there are fewer micro-batches per step (`gradient_accumulation_steps`) than pipeline stages. Reports an
error when an interleaved schedule cannot form its groups: fewer micro-batches than stages, or a remainder smaller
than a group.

## Why it matters

With `p` stages and `m` micro-batches a 1F1B pipeline idles `(p - 1) / (m + p - 1)` of the time. With `m < p` some
stage is idle more than it works.

## Example

    parallelism: {pipeline: 8}
    training: {gradient_accumulation_steps: 2}      # 78 % idle

## How to fix

Raise `gradient_accumulation_steps` (or `global_batch_size`), or use fewer stages.

## Options

Megatron: `microbatch_group_size_per_virtual_pipeline_stage`.

## Source

Narayanan et al. 2021, section 2.2; `megatron/core/pipeline_parallel/schedules.py` (final micro-batch group).
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.finding import Finding
from memcheck.rules.place import stated
from memcheck.rules.types import Context, Rule
from memcheck.rules.words import percent


def check(context: Context) -> Iterator[Finding]:
    """One finding: an impossible interleaving, or an idle pipeline."""
    job = context.training
    if job is None or job.layout.pipeline == 1:
        return
    stages, count = job.layout.pipeline, job.gradient_accumulation_steps
    batches = f"{count} micro-batch{'es' if count > 1 else ''} per step"
    pointer = stated(context.document, "/training/gradient_accumulation_steps", "/training/global_batch_size")
    related = (("stages", "/parallelism/pipeline"), ("schedule", "/parallelism/pipeline_schedule"))
    interleaved = job.layout.pipeline_schedule == "interleaved-1f1b" and job.layout.virtual_stages > 1
    group = job.option("microbatch_group_size_per_virtual_pipeline_stage") or stages
    if interleaved and isinstance(group, int) and (count < group or 0 < count % group < stages):
        yield RULE.finding(
            context,
            f"an interleaved pipeline of {stages} stages cannot run {batches}: groups of {group} leave {count % group}",
            pointer,
            help=f"use a multiple of {group}",
            related=related,
            severity="error",
        )
    elif count < stages:
        idle = (stages - 1) / (count + stages - 1)
        yield RULE.finding(
            context,
            f"{batches} for a pipeline of {stages} stages: it idles {percent(idle)} of the time",
            pointer,
            help=f"accumulate over at least {stages} micro-batches, better {4 * stages}, or use fewer stages",
            related=related,
        )


RULE = Rule(
    "MEM211",
    "pipeline-micro-batches",
    "warning",
    "The pipeline gets fewer micro-batches than it has stages.",
    __doc__,
    check,
    blocking=True,
)
