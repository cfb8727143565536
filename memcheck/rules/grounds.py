"""The assumptions that a verdict depends on: what the plan would need with other values of keys that it leaves out.

Each is computed by the engine, for a plan in which the other value is written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from memcheck.accounts.estimate import Estimate
from memcheck.errors import MemcheckError
from memcheck.finding import Location, Span
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.alternatives import ALTERNATIVES, alternative
from memcheck.job.resolve import resolve
from memcheck.job.types import Ground
from memcheck.memory.estimate import estimate as priced
from memcheck.plan.changes import with_changes
from memcheck.plan.document import Document, Provenance
from memcheck.plan.read import read_plan
from memcheck.rules.run import check_standing, is_legal, make_context
from memcheck.rules.types import RuleContext

LEAST = 0.01
"""A share of the need: what another value changes below this is not worth a word."""


def rests_on(context: RuleContext, known: frozenset[str], most: int) -> tuple[tuple[Ground, ...], int]:
    """The assumptions that move the need by more than 1 %, the largest first, and how many were not tried.

    ``most``: how many assumptions are tried. ``known``: the codes of what the rules find in the plan as it is.
    """
    now = context.estimate
    if now is None:
        return (), 0
    keys = tried(context)
    found = [ground for ground, _ in grounds(context, known, keys[:most])]
    moved = [each for each in found if abs(each.needed_bytes - now.needed_bytes) > LEAST * now.needed_bytes]
    moved.sort(key=lambda each: -abs(each.needed_bytes - now.needed_bytes))
    return tuple(moved), len(keys[most:])


def tried(context: RuleContext) -> list[str]:
    """The keys of the assumptions that have another value, in the order of the alternatives."""
    taken = _assumed(context)
    return [key for key in ALTERNATIVES if key in taken and alternative(key, taken[key]) is not None]


def grounds(context: RuleContext, known: frozenset[str], keys: Sequence[str]) -> Iterator[tuple[Ground, Estimate]]:
    """Each of these assumptions with another value, and the estimate with that."""
    taken = _assumed(context)
    document = unplaced(context)
    for key in keys:
        other = alternative(key, taken[key])
        answer = priced_with(context, document, known, {key: other})
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


def unplaced(context: RuleContext) -> Document:
    """The plan's document without the places of its values, which the estimates here do not need."""
    nowhere = Provenance(None, Location(context.document.path, Span(1, 1, 1, 1)))
    return context.document._replace(marks={"": nowhere})


def _assumed(context: RuleContext) -> dict[str, object]:
    """The assumptions' values, by key."""
    return {each.key: each.value for each in context.resolved.assumptions}


def priced_with(
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
