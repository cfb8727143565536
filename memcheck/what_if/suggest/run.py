"""Suggestions for one plan: a search, and each result checked as it would be written into the file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from memcheck.config.find import DEFAULT_FAIL_ABOVE, DEFAULT_WARN_ABOVE
from memcheck.errors import UsageError, closest
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.resolve import resolve
from memcheck.job.types import InferenceJob, TrainingJob
from memcheck.judge import Gate, check_document, check_file, effective_policy
from memcheck.memory.fit import RUNS, gpu_fit, on_host
from memcheck.memory.fit import UNCERTAIN as UNSETTLED
from memcheck.plan.finding import Remedy
from memcheck.plan.places import Document
from memcheck.plan.read import read_plan
from memcheck.plan.schema import branches, load_schema
from memcheck.plan.text import read_bytes
from memcheck.plan.value_edits import edited
from memcheck.record import Record
from memcheck.rules.result import PASSED, PlanResult
from memcheck.rules.run import make_context
from memcheck.rules.types import RuleContext
from memcheck.what_if.remedies.budget import Budget
from memcheck.what_if.remedies.changes import Priced
from memcheck.what_if.remedies.price import LayoutTally, Pricer, with_margin
from memcheck.what_if.search.goals import CHEAPEST, lean, money, on_each_card, search
from memcheck.what_if.search.rank import ParetoFilter, remedy_of
from memcheck.what_if.search.rank import shown as chosen

FITS, UNCERTAIN, SUGGESTED = "fits", "uncertain", "suggested"
NOTHING_FITS, NOT_JUDGED = "nothing-fits", "error"


class Suggestion(Record):
    """One remedy with what it costs."""

    remedy: Remedy
    numerics: str
    """``none`` | ``equivalent`` | ``changes results``."""
    gpus: int
    tokens_per_second_per_gpu: float | None
    """A model, for ranking; None where there is none."""
    price_per_gpu_hour: float | None = None
    """Price of one GPU for an hour, from the configuration; None where it states no price for the GPU."""
    price_per_million_tokens: float | None = None
    """Price of a million tokens: ``price_per_gpu_hour`` x GPUs x the modelled hours for a million tokens."""
    serves: str = ""
    """What can be served otherwise than the plan says; empty where nothing is."""


class CardCost(Record):
    """The plan as it is written on one GPU that has a price."""

    gpu: str
    fits: bool
    sure: bool
    """Whether the whole interval of the need is within the limit."""
    utilization: float
    slowdown: float | None
    price_per_hour: float
    """Money per hour for all GPUs of the plan together."""
    price_per_million_tokens: float | None


class Suggestions(Record):
    """The answer for one plan."""

    plan: PlanResult
    """The plan as written."""
    goal: str
    status: str
    """``fits`` (nothing is to be done) | ``uncertain`` (likewise: it passes, and its interval crosses the limit or the
    capacity) | ``suggested`` | ``nothing-fits`` | ``error`` (it cannot be judged, or
    fails by a rule that is not about memory, which no suggestion would end)."""
    found: tuple[Suggestion, ...] = ()
    """The suggestions that were found, the best first."""
    cards: tuple[CardCost, ...] = ()
    """With the goal ``cheapest``: the plan as it is written on each GPU that has a price, the cheapest that fits first.
    """
    best_as_written: bool = False
    """The plan as written is the best of those that fit."""
    keep: tuple[str, ...] = ()
    config: bool = False
    """The file is a framework's config or a launch script, which no suggestion edits."""
    stated: Mapping[str, object] = MappingProxyType({})
    """Hardware that the command line or the configuration states for it, by the names of the options."""
    tally: LayoutTally = LayoutTally()
    space: Mapping[str, tuple[object, ...]] = MappingProxyType({})
    exhausted: bool = False
    smallest: Suggestion | None = None
    budget: float | None = None
    """Seconds after which the search was cut short; None where it was not."""
    unsearched: int = 0
    """Plans of the spaces that it had begun, and did not look at."""
    timed_as: str = ""
    """The GPU whose rates stand in for those of the plan's own."""


SECTIONS = ("model", "hardware", "parallelism", "training", "inference")


def known_keys() -> tuple[str, ...]:
    """Return dotted keys of what a search may change, sections included."""
    schema = load_schema()
    properties = schema["properties"]
    found = [(name, *_below(properties[name], schema, name)) for name in SECTIONS]
    return tuple(dict.fromkeys(key for keys in found for key in keys))


def _below(schema: dict[str, Any], root: dict[str, Any], prefix: str) -> Iterator[str]:
    """Yield the dotted keys below ``prefix`` in a schema."""
    for branch in branches(schema, root):
        for name, item in branch.get("properties", {}).items():
            key = f"{prefix}.{name}"
            yield key
            yield from _below(item, root, key)


def check_keys(keys: Sequence[str]) -> None:
    """Raises UsageError for a key that no plan has: what is not there cannot be kept."""
    known = known_keys()
    for key in keys:
        if key not in known:
            close = closest(key, known) or [each for each in known if each.endswith(f".{key}")][:1]
            hint = f"did you mean {close[0]}?" if close else "a dotted key of the plan, as training.optimizer"
            raise UsageError(f"--keep {key}: plans have no such key", hint)


Job = TrainingJob | InferenceJob
SPARE = 3
"""More than are shown: the plan as written may be among them, and one that fits may warn where warnings fail."""


def suggest(
    document: Document,
    data: bytes,
    gate: Gate,
    *,
    goal: str = "fit",
    keep: tuple[str, ...] = (),
    top: int = 5,
    watch: Callable[[int], None] | None = None,
    budget: float | None = None,
) -> Suggestions:
    """Return the best ``top`` plans for a goal, each of which passes ``check`` once it is written.

    ``data`` are the bytes of the document's file. ``watch`` hears how many plans were looked at, now and then.
    ``budget``: seconds after which the search goes no further; None for no end.

    Raises:
        UsageError: the goal makes no sense for this plan.
    """
    quiet = gate._replace(remedies=None, inventory=False)
    plan = check_document(document, quiet)
    answer = Suggestions(
        plan, goal, NOT_JUDGED, keep=keep, config="/memcheck" not in document.marks, stated=gate.hardware
    )
    if plan.estimate is None:
        return answer
    context = _context(document, quiet, plan)
    if any(each.severity == "error" and not each.about_memory for each in plan.findings):
        return answer  # no change of memory ends it, and with it nothing passes
    verdict = gpu_fit(plan.estimate, context.fail_above)
    fits = verdict in RUNS and on_host(plan.estimate.host_bytes_per_node, context.host_bytes)
    if goal == "fit" and fits and verdict != UNSETTLED:
        return answer._replace(status=FITS)
    sure = goal == "fit" and fits  # what is sought is a plan whose whole interval fits
    fits = fits and not any(each.severity == "error" for each in plan.findings)  # a policy may fail uncertain plans
    as_written = UNCERTAIN if verdict == UNSETTLED else FITS
    pricer = with_margin(context, keep) if sure else Pricer(context, keep)
    pricer.watch, pricer.budget = watch, Budget(budget)
    prices = dict(gate.settings.prices)
    if goal == CHEAPEST and prices:
        cards = on_each_card(Pricer(context, keep), prices)
        answer = answer._replace(cards=tuple(_card(pricer, each, prices) for each in cards))
    found = search(pricer, goal, top + SPARE, prices)
    answer = answer._replace(
        tally=found.tally,
        space=found.space,
        exhausted=found.exhausted,
        timed_as=_timed(pricer),
        budget=budget if pricer.budget.spent else None,
        unsearched=pricer.budget.unsearched,
    )
    passing: list[tuple[Priced, Suggestion]] = []
    kept = ParetoFilter()
    most = top + SPARE if goal == "fit" else top  # of which those with a role are shown
    clusters: set[tuple[str, int]] = set()
    lighter = (lean(pricer, each) for each in found.found)
    for rank, priced in enumerate(p for p in lighter if kept.adds(p) or p.role):
        if len(passing) == most:
            break
        if not priced.changes:
            answer = answer._replace(best_as_written=rank == 0)
            continue
        cluster = priced.resolved.gpu.name, priced.resolved.job.layout.world_size
        if goal == CHEAPEST and cluster in clusters:  # its cheapest layout is there already
            continue
        suggestion = _suggestion(pricer, priced, document, prices)
        if passes(suggestion, document, data, quiet):
            passing.append((priced, suggestion))
            clusters.add(cluster)
    places = {id(priced) for priced in chosen([priced for priced, _ in passing], top)}
    shown = [suggestion for priced, suggestion in passing if id(priced) in places]
    if goal == CHEAPEST:  # changes that gain nothing were left out after the search had sorted: prices may be lower
        shown.sort(key=_price)
    status = SUGGESTED if shown or answer.best_as_written else as_written if fits else NOTHING_FITS
    smallest = None if found.smallest is None else _suggestion(pricer, found.smallest, document, prices)
    return answer._replace(status=status, found=tuple(shown), smallest=smallest)


def passes(suggestion: Suggestion, document: Document, data: bytes, gate: Gate) -> bool:
    """Say whether the plan passes with the change: as the edited files, or where it has no edits, with its values
    set.
    """
    remedy = suggestion.remedy
    if remedy.is_edit:
        texts = {file.path: edited(read_bytes(file.path), file.edits) for file in remedy.elsewhere}
        results, traces = check_file(document.path, edited(data, remedy.edits), gate._replace(texts=texts))
        result = next((each for each in results if each.document == document.index), None)
        if traces or result is None:
            return False
    else:
        result = check_document(document, gate._replace(changes={**gate.changes, **remedy.set}))
    estimate = result.estimate
    if result.status != PASSED or estimate is None:
        return False
    there = (estimate.needed_bytes, estimate.host_bytes_per_node)
    return there == (remedy.needed_bytes, remedy.host_bytes_per_node)


def _context(document: Document, gate: Gate, result: PlanResult) -> RuleContext:
    """Return what the rules look at, with the estimate of the plan as written."""
    plan, _ = read_plan(document)
    if plan is None:
        raise ValueError("a plan with an estimate can be read")
    plan = plan._replace(policy=effective_policy(plan.policy, gate))
    resolved = resolve(plan, FRAMEWORKS, base_dir=os.path.dirname(document.path))
    context = make_context(plan, document, resolved, fail_above=DEFAULT_FAIL_ABOVE, warn_above=DEFAULT_WARN_ABOVE)
    return context._replace(estimate=result.estimate)


def _price(suggestion: Suggestion) -> float:
    """Return the price of a million tokens in three digits, so that equal prices keep the order of the search."""
    price = suggestion.price_per_million_tokens
    return float("inf") if price is None else float(f"{price:.3g}")


def _timed(pricer: Pricer) -> str:
    clock = pricer.clock
    return clock.stand_in.name if clock.stand_in is not None and clock.stand_in.name != clock.gpu else ""


def _served(before: Job, after: Job) -> str:
    """Return what another plan can serve, where that is not the same."""
    if not isinstance(before, InferenceJob) or not isinstance(after, InferenceJob):
        return ""
    found = []
    if after.batch_size != before.batch_size:
        found.append(f"{after.batch_size:,} sequences at a time instead of {before.batch_size:,}")
    if after.context_length != before.context_length:
        found.append(f"contexts of {after.context_length:,} tokens instead of {before.context_length:,}")
    return " and ".join(found)


def _card(pricer: Pricer, priced: Priced, prices: Mapping[str, float]) -> CardCost:
    gpu, cost = priced.resolved.gpu.name, money(priced, pricer, prices)
    return CardCost(
        gpu=gpu,
        fits=pricer.fits(priced),
        sure=priced.sure,
        utilization=priced.estimate.utilization,
        slowdown=priced.slowdown,
        price_per_hour=prices[gpu] * priced.resolved.job.layout.world_size,
        price_per_million_tokens=None if cost is None else float(f"{cost:.6g}"),
    )


def _suggestion(pricer: Pricer, priced: Priced, document: Document, prices: Mapping[str, float]) -> Suggestion:
    step = pricer.clock.step(priced.resolved)
    cost = money(priced, pricer, prices)
    return Suggestion(
        remedy=remedy_of(priced, document),
        numerics=priced.candidate.numerics,
        gpus=priced.resolved.job.layout.world_size,
        serves=_served(pricer.context.job, priced.resolved.job),
        price_per_gpu_hour=prices.get(priced.resolved.gpu.name),
        price_per_million_tokens=None if cost is None else float(f"{cost:.6g}"),
        tokens_per_second_per_gpu=None if step is None else round(step.tokens_per_second_per_gpu, 1),
    )
