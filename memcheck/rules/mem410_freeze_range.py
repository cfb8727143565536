"""A range of frozen layers lies outside of the model.

## What it does

Checks every `layers:A-B` under `training.freeze` (B excluded) against the number of layers.

## Why it matters

The range was meant for another model: too few or no parameters are frozen, or nothing is left to train.

## Example

    model: llama-3.2-1b                     # 16 layers
    training: {freeze: ["layers:0-24"]}

## How to fix

Correct the range; the last layer of a model with L layers is `layers:L-1-L`.

## Options

None.

## Source

The plan format.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from memcheck.plan.finding import Finding
from memcheck.rules.types import Rule, RuleContext
from memcheck.rules.when import freezes

RANGE = r"layers:(\d+)-(\d+)"


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding per range that is empty or leaves the model."""
    job, layers = context.training, context.layers
    if job is None:
        return
    for i, part in enumerate(job.freeze):
        found = re.fullmatch(RANGE, part)
        if found is None:
            continue
        first, end = int(found[1]), int(found[2])
        if first < end <= layers:
            continue
        reason = "is empty" if first >= end else f"reaches beyond the {layers} layers of the model"
        yield RULE.finding(
            context,
            f"`{part}` {reason}",
            f"/training/freeze/{i}",
            help=f"layers are counted from 0 and the end is excluded: all of them are `layers:0-{layers}`",
            related=(("the model", "/model"),),
        )


RULE = Rule(
    code="MEM410",
    name="freeze-range",
    severity="error",
    summary="A range of frozen layers lies outside of the model.",
    doc=__doc__,
    check=check,
    when=freezes,
)
