"""Rows are not packed, and the plan fits only up to a length.

## What it does

Rows that are not packed have many lengths, and `training.sequence_length` is only their limit. The longest row of a
micro-batch decides what the step needs. Where the plan does not fit at the limit, this rule searches the longest row
with which the whole interval of the need fits. It uses the same engine and rounds down to a multiple of 8 tokens.

A plan passes with this warning under `unpacked: warn`, and fails under `unpacked: fail`. A plan that does not fit even
with rows of 64 tokens fails by MEM101 or MEM102. So does one that states its longest row.

The finding lists remedies with which the whole interval fits with rows at their limit.

## Why it matters

A limit of 4,096 tokens says little about a data set whose longest text has 400: ten times the memory is an answer to
another question. One long text among short ones still ends the job, often after many steps.

## Example

    training: {sequences: padded, micro_batch_size: 32, sequence_length: 4096}   # may fit up to rows of 450 tokens

## How to fix

Count the tokens of the longest text and state them: `training.longest_row` in the plan, or `--sequence-length` for the
config of a framework. Cut or leave out longer texts. Packing (`sequences: packed`) makes every row full instead.

## Options

`policy.unpacked` in the plan, `unpacked` in the configuration, `--unpacked` on the command line: `warn` or `fail`.
Where none is stated, `uncertain` decides, whose default is `warn`.

## Source

transformers' `data/data_collator.py` pads a micro-batch to its longest row.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.plan.finding import Finding
from memcheck.rules.budget import need, related
from memcheck.rules.defaulted import hanging
from memcheck.rules.types import MEASURED, Rule, RuleContext, stated
from memcheck.rules.when import limited_rows


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding where the plan fits with short rows and not at their limit."""
    estimate, job = context.estimate, context.training
    if estimate is None or job is None or not estimate.longest_row:
        return
    limit = f"{job.sequence_length:,} tokens"
    strict = context.unpacked == "fail"
    policy = "" if strict else "; `--unpacked fail` or `policy.unpacked: fail` refuses such a plan"
    yield RULE.finding(
        context,
        f"fits while the longest row of a micro-batch has at most {estimate.longest_row:,} tokens; rows are not "
        f"packed, and sequence_length is their limit; at {limit} the plan {need(context, estimate)}"
        f"{hanging(context, estimate)}",
        stated(context.document, "/training/sequence_length", "/training/sequences", "/hardware/gpu"),
        help="state the longest row: `training.longest_row` in a plan, `--sequence-length` for a framework's config"
        f"{policy}",
        related=(*related(context), ("the policy", "/policy/unpacked")),
        severity="error" if strict else "",
    )


RULE = Rule(
    code="MEM108",
    name="unpacked-rows",
    severity="warning",
    summary="Rows are not packed, and the plan fits only up to a length.",
    doc=__doc__,
    check=check,
    when=limited_rows,
    precision=MEASURED,
    needs_estimate=True,
)
