"""Changes that a plan offers only once its parameters are sharded: a search from an unsharded plan tries them, too."""

from __future__ import annotations

from memcheck.plan.changes import with_changes
from memcheck.rules.types import RuleContext
from memcheck.what_if.remedies.candidates import STAGE, same_hardware
from memcheck.what_if.remedies.price import Pricer
from memcheck.what_if.remedies.types import EQUIVALENT, CandidateChange


class Opened:
    """The changes that the highest ZeRO stage offers for a plan and its own stage does not.

    The answer for the last plan is kept: one search asks for it several times, and it takes an estimate.
    """

    def __init__(self) -> None:
        self._last: tuple[RuleContext, tuple[CandidateChange, ...]] | None = None

    def by_sharding(self, context: RuleContext) -> tuple[CandidateChange, ...]:
        """The changes, each with the stage that it needs; empty where the plan has the highest stage already."""
        if self._last is None or self._last[0] is not context:
            self._last = context, tuple(_found(context))
        return self._last[1]


OPENED = Opened()


def _found(context: RuleContext) -> list[CandidateChange]:
    """What is offered for the sharded plan alone; nothing where the plan cannot be sharded."""
    job, framework = context.training, context.framework
    if job is None or framework is None or context.estimate is None:
        return []
    stage = max(framework.parallelism.zero_stages, default=0)
    if stage <= job.layout.zero_stage or job.layout.data * job.layout.context == 1:
        return []
    first = CandidateChange("zero", f"shard everything (ZeRO stage {stage})", {STAGE: stage}, numerics=EQUIVALENT)
    priced = Pricer(context).price(first, prune=False)
    sharded = None if priced is None else priced.resolved.job
    if priced is None or sharded is None or sharded == job:
        return []
    there = context._replace(
        resolved=priced.resolved, estimate=priced.estimate, document=with_changes(context.document, priced.changes)
    )
    if there.training is None:
        return []
    known = [(each.kind, _without_stage(each)) for each in same_hardware(context, job)]
    return [
        each._replace(title=f"{each.title}, with ZeRO stage {stage}", set={STAGE: stage, **each.set})
        for each in same_hardware(there, there.training)
        if (each.kind, _without_stage(each)) not in known
    ]


def _without_stage(change: CandidateChange) -> dict[str, object]:
    return {key: value for key, value in change.set.items() if key != STAGE}
