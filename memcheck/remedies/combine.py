"""Two or more changes at once, for plans that no single change mends."""

from __future__ import annotations

from itertools import combinations

from memcheck.remedies.price import price
from memcheck.remedies.types import HARDWARE, UNCHANGED, Candidate, Priced
from memcheck.rules.types import Context

STRONGEST = 6
"""Changes of which pairs are tried: at most 15 pairs."""
MOST_PILED = 5


def fits(priced: Priced, context: Context) -> bool:
    """Whether the changed plan stays within what the policy allows."""
    return priced.estimate.utilization <= min(context.fail_above, 1.0)


def combine(priced: list[Priced], context: Context, allowed: frozenset[str]) -> list[Priced]:
    """Fitting combinations: the cheapest that keeps the training as it is, and one with each change that does not."""
    strongest = _strongest(priced, context)
    pairs = [_join(a, b) for a, b in combinations(strongest, 2)]
    same = [p for p in priced if p.candidate.cost == UNCHANGED]
    found = _cheapest(pairs, context, allowed) or _pile(same, context, allowed)
    combined = [] if found is None else [_relax(found, priced, context, allowed)]
    for other in priced:
        if other.candidate.cost in {UNCHANGED, HARDWARE} or fits(other, context):
            continue
        best = _cheapest([_join(other, s) for s in same], context, allowed)
        if best is not None:
            combined.append(_relax(best, priced, context, allowed))
    return combined


def _strongest(priced: list[Priced], context: Context) -> list[Priced]:
    """The most effective change of every kind on the same hardware with the same result."""
    best: dict[str, Priced] = {}
    before = context.estimate.device_bytes if context.estimate else 0
    for each in sorted(priced, key=lambda p: p.estimate.device_bytes):
        if each.candidate.cost == UNCHANGED and each.estimate.device_bytes < before:
            best.setdefault(each.candidate.kind, each)
    return list(best.values())[:STRONGEST]


def _cheapest(candidates: list[Candidate], context: Context, allowed: frozenset[str]) -> Priced | None:
    answers = [p for c in candidates if (p := price(c, context, allowed)) is not None and fits(p, context)]
    return min(answers, key=lambda p: p.rank, default=None)


def _pile(same: list[Priced], context: Context, allowed: frozenset[str]) -> Priced | None:
    """Add the change that helps most, then the one that helps most after it, until the plan fits.

    A change may help only after another: recompute does nothing while the optimizer step is the peak.
    """
    pile = min(same, key=lambda p: p.estimate.device_bytes, default=None)
    for _ in range(MOST_PILED - 1):
        if pile is None:
            return None
        used = {part.kind for part in pile.candidate.parts or (pile.candidate,)}
        rest = [_join(pile, p) for p in same if p.candidate.kind not in used]
        answers = [p for c in rest if (p := price(c, context, allowed)) is not None]
        best = min(answers, key=lambda p: p.estimate.device_bytes, default=None)
        if best is None or best.estimate.device_bytes >= pile.estimate.device_bytes:
            return None
        if fits(best, context):
            return best
        pile = best
    return None


def _relax(found: Priced, priced: list[Priced], context: Context, allowed: frozenset[str]) -> Priced:
    """Replace each part by a milder change of its kind as long as the plan still fits."""
    parts = list(found.candidate.parts)
    for i, part in enumerate(parts):
        milder = [p.candidate for p in priced if p.candidate.kind == part.kind and p.candidate.slowdown < part.slowdown]
        for other in sorted(milder, key=lambda c: c.slowdown):
            answer = price(_joined([*parts[:i], other, *parts[i + 1 :]]), context, allowed)
            if answer is not None and fits(answer, context):
                found, parts[i] = answer, other
                break
    return found


def _join(a: Priced, b: Priced) -> Candidate:
    return _joined([*(a.candidate.parts or (a.candidate,)), *(b.candidate.parts or (b.candidate,))])


def _joined(parts: list[Candidate]) -> Candidate:
    """Several changes at once."""
    changes: dict[str, object] = {}
    slower, accumulate, data = 1.0, 1.0, 1.0
    for part in parts:
        changes.update(part.set)
        slower *= 1 + part.slowdown
        accumulate *= part.accumulate
        data *= part.data
    return Candidate(
        kind="+".join(p.kind for p in parts),
        title="; ".join(p.title for p in parts),
        set=changes,
        slowdown=slower - 1,
        cost=max(p.cost for p in parts),
        accumulate=accumulate,
        data=data,
        parts=tuple(parts),
    )
