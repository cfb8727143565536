"""The plan fits as predicted, but the prediction's interval reaches beyond the capacity.

## What it does

Compares the upper end of the 95 % interval of what is needed with the capacity. The interval comes from the engine's
own measured errors on plans of that kind (framework and metric), not from a flat margin. Where a head scores texts
and the plan leaves `training.sequences` out, rows count as full, and the interval reaches to the upper end of what
padded ones need.

## Why it matters

"If memcheck says it fits, it fits" holds for the interval, not for its middle.

## Example

    # predicted 74.9 GiB of 79.1 GiB, interval 72.0 to 80.3 GiB

## How to fix

Free about the difference between the interval's upper end and the capacity, or run `memcheck verify` on the plan: a
traced or measured step replaces the interval.

## Options

None.

## Source

`benchmarks/accuracy`: residuals per framework and metric, with their number.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.finding import Finding
from memcheck.memory.fit import UNCERTAIN, gpu_fit
from memcheck.rules.types import MEASURED, Rule, RuleContext
from memcheck.rules.when import strained
from memcheck.rules.words import gib


def check(context: RuleContext) -> Iterator[Finding]:
    """One finding when only the upper end of the interval is beyond the capacity and nothing failed yet."""
    estimate = context.estimate
    if estimate is None or gpu_fit(estimate, context.fail_above) != UNCERTAIN:
        return
    from memcheck.rules.budget import key_pointer, need, related  # for a finding alone
    from memcheck.rules.defaulted import unstated

    low, high = estimate.needed_interval_bytes
    yield RULE.finding(
        context,
        f"{need(context, estimate)}, but the 95% interval {gib(low)} to {gib(high)} reaches "
        f"{gib(high - estimate.capacity_bytes)} beyond the capacity{unstated(context, estimate)}",
        key_pointer(context, estimate),
        help=f"free {gib(high - estimate.capacity_bytes)}, or measure the plan with `memcheck verify`",
        related=related(context),
    )


RULE = Rule(
    code="MEM104",
    name="interval-crosses-limit",
    severity="warning",
    summary="The prediction fits, but the upper end of its interval does not.",
    doc=__doc__,
    check=check,
    when=strained,
    precision=MEASURED,
    needs_estimate=True,
)
