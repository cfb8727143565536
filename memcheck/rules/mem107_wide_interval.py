"""The prediction is too wide to plan with.

## What it does

Compares the width of the 95 % interval of what is needed with the GPU's capacity, and reports more than 15 %.
Whether the interval crosses a limit is MEM104's.

## Why it matters

The interval comes from the errors that were measured on plans of that kind. A wide one says that few such plans were
measured, or that they scattered: a comparison of two plans by these figures may come out either way.

## Example

    # predicted 55.1 GiB of 79.1 GiB, interval 43.0 to 66.4 GiB

## How to fix

Run `memcheck verify` on the plan, traced or on one node, and take its figure instead; or compare plans by their
components, which differ by less than their sums.

## Options

None. The 15 % are a matter of judgement, which is why only the profile for studying plans has the rule.

## Source

`benchmarks/accuracy`: residuals per framework and metric, with their number.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.plan.finding import Finding
from memcheck.rules import RESEARCH
from memcheck.rules.budget import gib, key_pointer, percent, related
from memcheck.rules.types import MEASURED, Rule, RuleContext

WIDEST = 0.15
"""The widest interval that is not reported, as a share of the capacity."""


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding when the interval covers more than 15 % of the GPU."""
    estimate = context.estimate
    if estimate is None:
        return
    low, high = estimate.needed_interval_bytes
    if high - low <= WIDEST * estimate.capacity_bytes:
        return
    share = percent((high - low) / estimate.capacity_bytes)
    yield RULE.finding(
        context,
        f"the 95% interval of {gib(estimate.needed_bytes)} is {gib(low)} to {gib(high)}, {share} of the capacity",
        key_pointer(context, estimate),
        help="measure the plan with `memcheck verify`, or compare plans by their components",
        related=related(context),
    )


RULE = Rule(
    code="MEM107",
    name="wide-interval",
    severity="info",
    summary="The prediction's interval is wider than 15 % of the GPU.",
    doc=__doc__,
    check=check,
    precision=MEASURED,
    profile=RESEARCH,
    needs_estimate=True,
)
