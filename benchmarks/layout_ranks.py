"""Where a published layout ranks among all plans that ``suggest --goal throughput`` searches on the same GPUs.

    python -m benchmarks.layout_ranks [WORD] [--show N]     # of the layouts whose titles contain WORD; minutes

Every plan of the space is timed, and every one that is predicted to be faster is priced: the rank is one more than the
number of legal plans that fit and are strictly faster. Four questions, recorded in ``data/layout_ranks.json``, which
``benchmarks/throughput.md`` shows:

- ``recipe kept``: the layout varies; all that the authors chose under ``training`` stays as they wrote it;
- ``free``: micro-batch, recompute, loss, allocator and offloading vary, too; the global batch stays;
- ``layouts``: as ``free``, but every layout counts once, with its fastest settings that fit, the published one's too;
- ``suggested``: as ``layouts``, but of the layouts with the same degrees only the fastest counts, as ``suggest`` lists
  them: schedule, virtual stages, ZeRO stage and sharding group are settings, too.

``--show N`` prints the N fastest of each.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping

from benchmarks.cases import HERE, load
from memcheck.config.find import DEFAULT_FAIL_ABOVE, DEFAULT_WARN_ABOVE
from memcheck.errors import UsageError
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.resolve import resolve
from memcheck.job.types import Layout
from memcheck.memory.estimate import estimate
from memcheck.plan.places import Document
from memcheck.plan.read import read_plan
from memcheck.record import Record
from memcheck.rules.run import make_context
from memcheck.what_if.remedies.changes import UNCHANGED, CandidateChange
from memcheck.what_if.remedies.price import Pricer
from memcheck.what_if.search.explore import possible
from memcheck.what_if.search.rank import Split, split_of
from memcheck.what_if.search.space import Space, space_of
from memcheck.what_if.suggest.run import known_keys

RECORDED = "layout_ranks.json"
FULL = 200
"""Faster plans after which counting stops."""
FOLLOW = frozenset({"training.gradient_accumulation_steps", "training.global_batch_size"})
RECIPE = tuple(k for k in known_keys() if k.startswith("training.") and k.count(".") == 1 and k not in FOLLOW)
"""What the authors chose under ``training``; accumulation only follows from the layout."""
EQUAL = 1e-9
"""Relative difference of times below which neither is faster."""


class Timed(Record):
    """A legal plan of the space."""

    slower: float
    """Relative time against the plan as written."""
    changes: int
    candidate: CandidateChange
    layout: Layout
    step: tuple[object, ...]
    """The job without what its step does not run: the setting of the allocator."""


class Search(Record):
    """One space, timed."""

    pricer: Pricer
    considered: int
    plans: tuple[Timed, ...]
    """Those that are faster than the plan as written or have its layout, fastest first, equal jobs once."""


def timed(document: Document, keep: tuple[str, ...] = ()) -> Search:
    """Time all legal plans around a document's.

    Raises:
        UsageError: the document is no plan.
    """
    plan, _ = read_plan(document)
    if plan is None:
        raise UsageError("no plan")
    resolved = resolve(plan, FRAMEWORKS, base_dir=".")
    answer = estimate(resolved.job, resolved.gpu, resolved.overhead)
    context = make_context(plan, document, resolved, fail_above=DEFAULT_FAIL_ABOVE, warn_above=DEFAULT_WARN_ABOVE)
    pricer = Pricer(context._replace(estimate=answer), keep)
    space: Space = space_of(pricer.context, UNCHANGED, faster=True)
    seen: set[object] = set()
    found: list[Timed] = []
    for candidate in possible(pricer, space):
        changes = pricer.complete(candidate)
        legal = None if changes is None else pricer.resolved(changes)
        if changes is None or legal is None or (key := legal.job[1:]) in seen:
            continue
        seen.add(key)
        slower = pricer.slowdown(candidate, legal)
        own = legal.job.layout == context.layout
        if slower is not None and (slower < -EQUAL or own):
            step = legal.job._replace(expandable_segments=False)[1:]
            found.append(Timed(slower, len(changes), candidate, legal.job.layout, step))
    found.sort(key=lambda each: each[:2])
    return Search(pricer, len(space.layouts) * len(space.states) * len(space.steps), tuple(found))


def fitting(search: Search, plans: Iterable[Timed]) -> Iterable[Timed]:
    """Those that fit, in their order; of several that run the same step, one."""
    seen: set[object] = set()
    for each in plans:
        priced = None if each.step in seen else search.pricer.price(each.candidate)
        if priced is not None and search.pricer.fits(priced):
            seen.add(each.step)
            yield each


def faster(search: Search) -> list[Timed]:
    """The plans that fit and are strictly faster than the plan as written, at most ``FULL`` of them."""
    found: list[Timed] = []
    for each in fitting(search, (p for p in search.plans if p.slower < -EQUAL)):
        found.append(each)
        if len(found) == FULL:
            break
    return found


def layouts_faster(search: Search) -> list[Timed]:
    """The fastest fitting plan of every layout that beats the fastest fitting plan of the layout as written."""
    own = search.pricer.context.layout
    best = next(iter(fitting(search, (p for p in search.plans if p.layout == own))), None)
    limit = -EQUAL if best is None else best.slower - EQUAL
    by_layout: dict[Layout, list[Timed]] = {}
    for each in search.plans:
        if each.slower < limit and each.layout != own:
            by_layout.setdefault(each.layout, []).append(each)
    firsts = (next(iter(fitting(search, plans)), None) for plans in by_layout.values())
    return sorted((p for p in firsts if p is not None), key=lambda each: each[:2])


def splits_faster(search: Search, layouts: Iterable[Timed]) -> list[Timed]:
    """Of the layouts that beat the one as written, the fastest of each split that beats the own one's fastest."""
    own = split_of(search.pricer.context.layout)
    firsts: dict[Split, Timed] = {}
    for each in layouts:
        if (split := split_of(each.layout)) == own:
            break
        firsts.setdefault(split, each)
    return list(firsts.values())


def said(found: list[Timed], considered: int) -> str:
    """The rank behind these plans, of all that were considered."""
    rank = f"{len(found) + 1:,}" if len(found) < FULL else f"below {FULL}"
    return f"{rank} of {considered:,}"


def main(arguments: list[str]) -> int:
    """Print the ranks of each layout, and record them."""
    from benchmarks.throughput import layouts

    shown = int(arguments[arguments.index("--show") + 1]) if "--show" in arguments else 0
    words = [a for a in arguments if not a.startswith("--") and a != str(shown)]
    gc.disable()  # records by the million, and none in a circle
    for layout in layouts():
        if words and words[0] not in layout.title:
            continue
        start = time.monotonic()
        kept, free = timed(layout.document, RECIPE), timed(layout.document)
        lists = {"recipe kept": faster(kept), "free": faster(free), "layouts": layouts_faster(free)}
        lists["suggested"] = splits_faster(free, lists["layouts"])
        numbers = {
            "recipe kept": said(lists["recipe kept"], kept.considered),
            "free": said(lists["free"], free.considered),
            "layouts": f"{len(lists['layouts']) + 1:,}",
            "suggested": f"{len(lists['suggested']) + 1:,}",
        }
        words_of = "; ".join(f"{name} {number}" for name, number in numbers.items())
        sys.stdout.write(f"{layout.title}: {words_of} ({time.monotonic() - start:.0f} s)\n")
        for name, found in lists.items():
            for each in found[:shown]:
                sys.stdout.write(f"  {name}: {each.slower:+.2%} {each.candidate.set}\n")
        sys.stdout.flush()
        _record(layout.title, numbers)
    return 0


def _record(title: str, numbers: Mapping[str, str]) -> None:
    recorded = {**load(RECORDED), title: numbers}
    with open(os.path.join(HERE, "data", RECORDED), "w", encoding="utf-8", newline="\n") as file:
        file.write(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
