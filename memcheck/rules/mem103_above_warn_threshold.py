"""The plan fits, but comes close to the limit.

## What it does

Compares the predicted utilisation (`needed / capacity`) with `warn_above`. A plan above `fail_above` is reported by
MEM102. A plan whose interval crosses the limit is reported by MEM104 alone, which also says how full the GPU is.

## Why it matters

There is little room left for a longer sequence, one more feature, or an error of the prediction.

## Example

    policy: {warn_above: 85%}      # and a plan that is predicted to need 87 %

## How to fix

Nothing has to be done. Leave it, or take the first of the finding's remedies.

## Options

`policy.warn_above` in the plan, `warn-above` in the configuration, `--warn-above` on the command line.

## Source

As MEM102.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.memory.fit import RUNS, gpu_fit
from memcheck.plan.finding import Finding
from memcheck.rules.budget import gib, key_pointer, need, peak, percent, related
from memcheck.rules.types import MEASURED, Rule, RuleContext
from memcheck.rules.when import strained


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding between ``warn_above`` and ``fail_above``."""
    estimate = context.estimate
    if estimate is None or estimate.utilization <= context.warn_above:
        return
    if estimate.longest_row or gpu_fit(estimate, context.fail_above) not in RUNS:
        return
    left = gib(estimate.capacity_bytes - estimate.needed_bytes)
    yield RULE.finding(
        context,
        f"{need(context, estimate)}, above {percent(context.warn_above)}; {left} left; {peak(context, estimate)}",
        key_pointer(context, estimate),
        related=(*related(context), ("the threshold", "/policy/warn_above")),
    )


RULE = Rule(
    code="MEM103",
    name="above-warn-threshold",
    severity="warning",
    summary="The plan fills more of the GPU than `warn_above`.",
    doc=__doc__,
    check=check,
    when=strained,
    precision=MEASURED,
    needs_estimate=True,
)
