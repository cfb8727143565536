"""A search for plans that fit with their whole interval: what ends the warning of a plan that passes."""

from __future__ import annotations

from memcheck.rules.types import RuleContext
from memcheck.what_if.remedies.price import Pricer


def with_margin(context: RuleContext, keep: tuple[str, ...] = ()) -> Pricer:
    """Prices changes of a plan; only those fit whose interval lies within the limit of the plan.

    Intervals grow about as the need does. The limit of the need is lowered by their ratio, which says where to look,
    and the interval itself decides.
    """
    limit, estimate = context.fail_above, context.estimate
    if estimate is not None and estimate.needed_interval_bytes[1]:
        aim = estimate.needed_bytes / estimate.needed_interval_bytes[1]
        context = context._replace(fail_above=limit * min(1.0, aim))
    pricer = Pricer(context, keep)
    pricer.whole, pricer.sure = limit, True
    return pricer
