"""The assumptions that a verdict depends on: what the plan would need with other values of keys that it leaves out.

Each is computed by the engine, for a plan in which the other value is written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from memcheck.accounts.estimate import Estimate
from memcheck.edge.text import between, value
from memcheck.errors import MemcheckError
from memcheck.finding import Location, Span
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.alternatives import ALTERNATIVES, alternative
from memcheck.job.resolve import resolve
from memcheck.job.types import Ground
from memcheck.memory.estimate import estimate as priced
from memcheck.memory.fit import FITS, UNCERTAIN, verdict_of
from memcheck.plan.changes import with_changes
from memcheck.plan.document import Document, Provenance
from memcheck.plan.read import read_plan
from memcheck.rules.run import check_standing, is_legal, make_context
from memcheck.rules.types import RuleContext

ROWS = "training.sequences"
LEAST = 0.01
"""A share of the need: what another value changes below this is not worth a word."""


def rests_on(context: RuleContext, known: frozenset[str], most: int) -> tuple[tuple[Ground, ...], int]:
    """The assumptions that move the need by more than 1 %, the largest first, and how many were not tried.

    ``most``: how many assumptions are tried. ``known``: the codes of what the rules find in the plan as it is.
    """
    now = context.estimate
    if now is None:
        return (), 0
    found = [ground for ground, _ in _grounds(context, known, most)]
    moved = [each for each in found if abs(each.needed_bytes - now.needed_bytes) > LEAST * now.needed_bytes]
    moved.sort(key=lambda each: -abs(each.needed_bytes - now.needed_bytes))
    return tuple(moved), max(0, len(_assumed(context)) - most)


def settled_by(context: RuleContext, known: frozenset[str]) -> str:
    """The one fact that would settle whether an uncertain plan fits, or that only a run can tell; empty for others."""
    now = context.estimate
    if now is None or verdict_of(now, context.fail_above) != UNCERTAIN:
        return ""
    if now.padded_bytes:
        packed = _with(context, _unplaced(context), known, {ROWS: "packed"})
        if packed is not None and verdict_of(packed, context.fail_above) == FITS:
            return f"state `{ROWS}`: with `packed` the plan fits, {between(packed.needed_interval_bytes)} GiB"
    for ground, there in _grounds(context, known, len(ALTERNATIVES)):
        if ground.key in FACTS and verdict_of(there, context.fail_above) == FITS:
            key, other = f"`{ground.key}: {value(ground.other)}`", between(there.needed_interval_bytes)
            return f"with {key} in place of `{value(ground.value)}`, which is assumed, the plan fits, {other} GiB"
    from memcheck.memory.basis import interval_basis

    _, cases = interval_basis(context.job)
    return f"only a run can tell: the interval is as wide as the errors of {cases} known runs of this kind"


FACTS = frozenset(
    {
        "training.expandable_segments",
        "training.attention",
        "training.loss.keep_logits",
        "training.optimizer.implementation",
        "parallelism.gradient_sync",
        "training.options.fsdp_version",
        "training.options.prepare_model_for_kbit_training",
        "training.loss.upcast",
        "training.clip_grad_norm",
    }
)
"""What a launch settles that a plan seldom states: to state it asks for no other training."""


def _grounds(context: RuleContext, known: frozenset[str], most: int) -> Iterator[tuple[Ground, Estimate]]:
    """Each assumption with another value, and the estimate with that."""
    taken = _assumed(context)
    document = _unplaced(context)
    for key in [key for key in ALTERNATIVES if key in taken][:most]:
        other = alternative(key, taken[key])
        answer = _with(context, document, known, {key: other})
        if answer is not None:
            stated = list(taken[key]) if isinstance(taken[key], tuple) else taken[key]  # type: ignore[call-overload]
            yield (
                Ground(
                    key=key,
                    value=stated,
                    other=other,
                    needed_bytes=answer.needed_bytes,
                    utilization=answer.utilization,
                ),
                answer,
            )


def _unplaced(context: RuleContext) -> Document:
    """The plan's document without the places of its values, which the estimates here do not need."""
    nowhere = Provenance(None, Location(context.document.path, Span(1, 1, 1, 1)))
    return context.document._replace(marks={"": nowhere})


def _assumed(context: RuleContext) -> dict[str, object]:
    """The assumptions that have another value, by key."""
    taken = {each.key: each.value for each in context.resolved.assumptions}
    return {key: value for key, value in taken.items() if alternative(key, value) is not None}


def _with(
    context: RuleContext, document: Document, known: frozenset[str], change: dict[str, object]
) -> Estimate | None:
    """The estimate with a value written; None where such a plan would be another one, or none."""
    try:
        plan, findings = read_plan(with_changes(document, change))
        if plan is None or any(each.severity == "error" for each in findings):
            return None
        plan = plan._replace(policy=context.plan.policy)
        resolved = resolve(plan, FRAMEWORKS, base_dir=os.path.dirname(document.path))
        limits = {"fail_above": context.fail_above, "warn_above": context.warn_above}
        changed = make_context(plan, document, resolved, **limits)
        if not is_legal(changed, known, check_standing(changed)):
            return None
        return priced(resolved.job, resolved.gpu, resolved.overhead, every_rank=False)
    except MemcheckError:
        return None
