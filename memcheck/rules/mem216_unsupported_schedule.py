"""The framework does not have this pipeline schedule, or the schedule lacks what it interleaves.

## What it does

Compares `pipeline_schedule` with the framework's own schedules, and reports an interleaved schedule over a single stage
per rank (`virtual_stages: 1`).

## Why it matters

The schedule decides how many micro-batches of activations are alive at once: 1F1B keeps as many as there are stages
behind, GPipe all of them.

## Example

    parallelism: {pipeline: 4, pipeline_schedule: gpipe}
    training: {framework: megatron}

## How to fix

Take one of the schedules that the finding lists; for an interleaved one set `virtual_stages` to 2 or more.

## Options

None.

## Source

torch `distributed/pipelining/schedules.py`; `megatron/core/pipeline_parallel/schedules.py` (1F1B, with and without
interleaving).
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.finding import Finding
from memcheck.rules.types import Context, Rule
from memcheck.rules.words import listed


def check(context: Context) -> Iterator[Finding]:
    """One finding for a schedule that cannot run."""
    framework, layout = context.framework, context.layout
    if framework is None or layout.pipeline == 1 or not framework.schedules:
        return
    schedule = layout.pipeline_schedule
    if schedule not in framework.schedules:
        message = f"{framework.title} has no pipeline schedule `{schedule}`"
        help = f"its schedules: {listed(framework.schedules)}"
    elif schedule == "interleaved-1f1b" and layout.virtual_stages == 1:
        message = "an interleaved schedule with one stage per rank has nothing to interleave"
        help = "set `virtual_stages: 2`, or use `pipeline_schedule: 1f1b`"
    else:
        return
    yield RULE.finding(
        context,
        message,
        "/parallelism/pipeline_schedule",
        help=help,
        related=(("the framework", "/training/framework"), ("virtual stages", "/parallelism/virtual_stages")),
    )


RULE = Rule(
    "MEM216",
    "unsupported-schedule",
    "error",
    "The framework does not have this pipeline schedule.",
    __doc__,
    check,
    blocking=True,
)
