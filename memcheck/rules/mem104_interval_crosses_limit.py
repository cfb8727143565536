"""The plan may not fit: the interval of its predicted memory crosses the limit.

## What it does

Compares the upper end of the 95 % interval of what is needed with the capacity, and with `fail_above`. The interval
comes from the engine's own measured errors on plans of that kind (framework and metric), not from a flat margin. Where
a head scores texts and the plan leaves `training.sequences` out, the interval also covers padded rows.

A plan passes with this warning under `uncertain: warn`, and fails under `uncertain: fail`. A plan whose predicted need
itself is above the limit fails by MEM101 or MEM102.

## Why it matters

"If memcheck says it fits, it fits" holds for the whole interval, not for its middle.

## Example

    # predicted 74.9 GiB of 79.1 GiB, between 72.0 and 80.3 GiB

## How to fix

The finding names the fact that would settle it, where the plan leaves one open. Otherwise free about the difference
between the upper end of the interval and the limit, or run `memcheck verify` on the plan: a measured step replaces the
interval.

## Options

`policy.uncertain` in the plan, `uncertain` in the configuration, `--uncertain` on the command line: `warn` (the
default) or `fail`. `fail_above` moves the limit.

## Source

`benchmarks/accuracy`: residuals per framework and metric, with their number.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.edge.screen import between
from memcheck.memory.fit import UNCERTAIN, gpu_fit
from memcheck.plan.finding import Finding
from memcheck.rules.budget import gib, key_pointer, need, percent, related, settling
from memcheck.rules.defaulted import STATE_ROWS, unstated
from memcheck.rules.types import MEASURED, Rule, RuleContext
from memcheck.rules.when import strained


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding when only the upper end of the interval is above the limit and nothing failed yet."""
    estimate = context.estimate
    if estimate is None or estimate.longest_row or gpu_fit(estimate, context.fail_above) != UNCERTAIN:
        return
    capacity, high = estimate.capacity_bytes, estimate.needed_interval_bytes[1]
    limit = min(capacity, int(capacity * context.fail_above))
    what = f"the limit of {percent(context.fail_above)}" if context.fail_above < 1 else "the capacity"
    if high > capacity > limit:
        what += ", and above the capacity"
    close = f", above {percent(context.warn_above)}" if estimate.utilization > context.warn_above else ""
    open_rows = unstated(context, estimate)
    yield RULE.finding(
        context,
        f"{need(context, estimate)}{close}; uncertain: it may be {between(estimate.needed_interval_bytes)} GiB, "
        f"up to {gib(high - limit)} above {what}{open_rows}{settling(context)}",
        key_pointer(context, estimate),
        help=STATE_ROWS if open_rows else f"free {gib(high - limit)}, or measure the plan with `memcheck verify`",
        related=(*related(context), ("the limit", "/policy/fail_above"), ("the policy", "/policy/uncertain")),
        severity="error" if context.uncertain == "fail" else "",
    )


RULE = Rule(
    code="MEM104",
    name="interval-crosses-limit",
    severity="warning",
    summary="The predicted need fits, but the upper end of its interval does not.",
    doc=__doc__,
    check=check,
    when=strained,
    precision=MEASURED,
    needs_estimate=True,
)
