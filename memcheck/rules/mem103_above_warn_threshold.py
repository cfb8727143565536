"""The plan fits, but comes close to the limit.

## What it does

Compares the predicted utilisation (`needed / capacity`) with `warn_above`. What lies above `fail_above` is MEM102's.
Also reports a plan that a default alone keeps below `fail_above`: one whose head scores texts and that leaves
`training.sequences` out, where padded rows would need more than that.

## Why it matters

There is little room left for a longer sequence, one more feature, or an error of the prediction.

## Example

    policy: {warn_above: 85%}      # and a plan that is predicted to need 87 %

## How to fix

Nothing has to be done. Leave it, or take the cheapest of the finding's remedies. Where a default decides, state the
key that the finding names.

## Options

`policy.warn_above` in the plan, `warn-above` in the configuration, `--warn-above` on the command line.

## Source

As MEM102.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.finding import Finding
from memcheck.memory.fit import FITS, RUNS, gpu_fit, hangs
from memcheck.rules.types import MEASURED, Rule, RuleContext
from memcheck.rules.when import strained
from memcheck.rules.words import gib, percent


def check(context: RuleContext) -> Iterator[Finding]:
    """One finding between ``warn_above`` and ``fail_above``."""
    estimate = context.estimate
    if estimate is None:
        return
    fit, close = gpu_fit(estimate, context.fail_above), estimate.utilization > context.warn_above
    by_default = fit == FITS and hangs(estimate, context.fail_above)  # of a wider interval MEM104 says so
    if fit not in RUNS or not (close or by_default):
        return
    from memcheck.rules.budget import key_pointer, need, peak, related  # for a finding alone
    from memcheck.rules.defaulted import STATE_ROWS, unstated

    left = gib(estimate.capacity_bytes - estimate.needed_bytes)
    above = f", above {percent(context.warn_above)}" if close else ""
    other = unstated(context, estimate) if by_default else ""
    yield RULE.finding(
        context,
        f"{need(context, estimate)}{above}; {left} left; {peak(context, estimate)}{other}",
        key_pointer(context, estimate),
        help=STATE_ROWS if by_default else "",
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
