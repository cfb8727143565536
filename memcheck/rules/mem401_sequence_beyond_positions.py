"""The sequence is longer than the model has positions.

## What it does

Compares `sequence_length` (or `context_length`) with the model's `max_position_embeddings`. With learned positions it
is an error; with rotary ones a warning.

## Why it matters

A learned position table has no row for the last tokens: the lookup fails on the device. Rotary positions can be
computed, but the model was not trained on them; without rope scaling the loss is poor.

## Example

    model: gpt2                          # 1024 learned positions
    training: {sequence_length: 2048}

## How to fix

Shorten the sequence, or raise the limit where the training code does so too:
`model: {name: ..., overrides: {max_position_embeddings: 131072}}`.

## Options

None.

## Source

The model's own configuration.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.job.types import InferenceJob
from memcheck.plan.finding import Finding
from memcheck.rules.types import Rule, RuleContext
from memcheck.rules.when import beyond_positions


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding when the sequence exceeds the positions."""
    model, job = context.architecture, context.job
    if model is None or not beyond_positions(context):
        return
    if isinstance(job, InferenceJob):
        length, key = job.context_length, "inference/context_length"
    else:
        length, key = job.sequence_length, "training/sequence_length"
    limit = model.max_position_embeddings
    learned = model.learned_positions > 0
    kind = "learned positions" if learned else "positions"
    yield RULE.finding(
        context,
        f"{key.rpartition('/')[2]} {length} exceeds the {limit} {kind} of {model.model_type}",
        f"/{key}",
        help=f"use at most {limit}, or override `max_position_embeddings` as the training code does",
        related=(("the model", "/model"),),
        severity="error" if learned else "warning",
    )


RULE = Rule(
    code="MEM401",
    name="sequence-beyond-positions",
    severity="warning",
    summary="The sequence is longer than the model has positions.",
    doc=__doc__,
    check=check,
    when=beyond_positions,
    batch=True,
)
