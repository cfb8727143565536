"""The policy requires the whole interval to fit, and its upper end does not.

## What it does

Under `[policy] require-interval = true`, fails a plan that is uncertain: the predicted need fits, and the upper end of
its 95 % interval is above `fail_above` or the capacity. Without that policy MEM104 warns of it, or fails the plan where
`uncertain = "fail"` is set, which a plan may change unless the policy is locked.

## Why it matters

A run of weeks that dies of the one case in forty is dearer than the memory that was left.

## Example

    # predicted 74.9 GiB of 79.1 GiB, between 72.0 and 80.3 GiB; memcheck.toml: [policy] require-interval = true

## How to fix

Free about the difference, or measure the plan with `memcheck verify`.

## Options

`[policy] require-interval`.

## Source

The repository's configuration: [a policy that holds](../ci.md#a-policy-that-holds).
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.memory.fit import UNCERTAIN, gpu_fit
from memcheck.plan.finding import Finding
from memcheck.rules.types import MEASURED, Rule, RuleContext
from memcheck.rules.when import governed


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding when only the upper end of the interval is above the limit."""
    governance, estimate = context.governance, context.estimate
    if governance is None or not governance.require_interval or estimate is None:
        return
    if gpu_fit(estimate, context.fail_above) == UNCERTAIN:
        yield RULE.finding(
            context,
            "the policy requires the whole 95% interval to fit, and its upper end does not",
            "/hardware/gpu",
            help="free what MEM104 names, or measure the plan with `memcheck verify`",
        )


RULE = Rule(
    code="MEM606",
    name="interval-required",
    severity="error",
    summary="The policy requires the whole interval to fit, and its upper end does not.",
    doc=__doc__,
    check=check,
    when=governed,
    precision=MEASURED,
    needs_estimate=True,
)
