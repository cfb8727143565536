"""The plan fits, but fills more of the GPU than the policy allows.

## What it does

Compares the predicted utilisation (`needed / capacity`) with `fail_above`. Plans that do not fit at all are MEM101's.

## Why it matters

What a prediction cannot see (fragmentation over days, a colleague's process, a new driver) takes a few percent. A job
that needs all of its GPU may survive its first steps and die in the night.

## Example

    policy: {fail_above: 90%}      # and a plan that is predicted to need 93 %

## How to fix

Take one of the finding's remedies, or raise `policy.fail_above` for this plan if it has been run and is known to hold.

## Options

`policy.fail_above` in the plan, `fail-above` in the configuration, `--fail-above` on the command line.

## Source

The default, 95 %, comes from published jobs that ran or ended in out-of-memory, and from what memcheck predicts for
them: `docs/trust.md`. The intervals are those of MEM104.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.memory.fit import ABOVE, gpu_fit
from memcheck.plan.finding import Finding
from memcheck.rules.budget import doubt, gib, key_pointer, need, peak, percent, related
from memcheck.rules.defaulted import hanging
from memcheck.rules.types import MEASURED, Rule, RuleContext
from memcheck.rules.when import strained


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding between ``fail_above`` and the capacity."""
    estimate = context.estimate
    if estimate is None or gpu_fit(estimate, context.fail_above) != ABOVE:
        return
    over = estimate.needed_bytes - int(context.fail_above * estimate.capacity_bytes)
    limit = f"above the limit of {percent(context.fail_above)} by {gib(over)}"
    yield RULE.finding(
        context,
        f"{need(context, estimate)}, {limit}{doubt(context, estimate)}; "
        f"{peak(context, estimate)}{hanging(context, estimate)}",
        key_pointer(context, estimate),
        help="free a little memory, or raise `policy.fail_above` if this plan is known to run",
        related=(*related(context), ("the limit", "/policy/fail_above")),
    )


RULE = Rule(
    code="MEM102",
    name="above-fail-threshold",
    severity="error",
    summary="The plan fills more of the GPU than `fail_above`.",
    doc=__doc__,
    check=check,
    when=strained,
    precision=MEASURED,
    needs_estimate=True,
)
