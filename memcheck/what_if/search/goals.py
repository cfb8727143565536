"""What can be asked for: the least change, the fastest step, the fewest GPUs, the largest batch, the least cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

from memcheck.config.read import EXAMPLE
from memcheck.errors import UsageError
from memcheck.job.types import InferenceJob, Layout, TrainingJob
from memcheck.record import Record
from memcheck.what_if.compare import per_million_tokens
from memcheck.what_if.points import uncollected
from memcheck.what_if.remedies.changes import (
    EQUIVALENT,
    HARDWARE,
    METHOD,
    OTHER,
    SAME,
    UNCHANGED,
    CandidateChange,
    Priced,
    join,
)
from memcheck.what_if.remedies.price import BATCH, STEPS, LayoutTally, Pricer
from memcheck.what_if.search.explore import explore, fastest_first
from memcheck.what_if.search.fit import Fit
from memcheck.what_if.search.rank import changed, least_cost
from memcheck.what_if.search.space import NOTHING, Space, space_of, together


def clusters(layout: Layout, most: int, above: int = 0) -> Iterator[tuple[int, int]]:
    """Yield (nodes, GPUs per node) with more than ``above`` and at most ``most`` GPUs, ascending.

    Parts of one node by powers of two, then whole nodes by powers of two and, as written, their own number.
    """
    gpus_per_node = layout.gpus_per_node
    parts_of_node = [gpus for gpus in _powers_of_two(gpus_per_node) if gpus < gpus_per_node]
    many_nodes = _powers_of_two(most)
    sizes = {(1, gpus) for gpus in parts_of_node}
    sizes |= {(nodes, gpus_per_node) for nodes in (*many_nodes, layout.nodes)}
    if gpus_per_node < FULL_NODE:  # a part of a node was asked for: whole nodes have more
        sizes = {(1, gpus) for gpus in _powers_of_two(FULL_NODE)} | {(1, gpus_per_node)}
        sizes |= {(nodes, FULL_NODE) for nodes in many_nodes}
    for nodes, gpus in sorted(sizes, key=lambda size: (size[0] * size[1], size[0])):
        if above < nodes * gpus <= most:
            yield nodes, gpus


FULL_NODE = 8
"""GPUs of a usual node."""


def _powers_of_two(most: int) -> list[int]:
    """List the powers of two up to ``most``, ascending from 1."""
    return [1 << exponent for exponent in range(most.bit_length())]


MOST = 1 << 24
GLOBAL = "training.global_batch_size"


GROWN = "largest"
"""The kind of the change that grows a key, which is what is asked for."""


class Growth(Record):
    """The key that grows, and its steps."""

    key: str
    step: int
    setting: str = ""
    """The key's name among the settings of a serving engine; empty for other keys."""


def largest(pricer: Pricer, space: Space, growth: Growth) -> list[Priced]:
    """For every layout and way to run a step, the plan with the largest value that fits; the largest value first.

    Each way doubles the value until it does not fit, and then halves the interval: within one way, a larger value
    needs more memory. Over several layouts, only those that reach further than the ones before are grown.
    """
    found: list[Priced] = []
    most = 0
    ways = [step for step in space.steps if BATCH not in step.set or growth.key != BATCH]
    for layout in space.layouts:
        for states in space.states:
            base = together(layout, states)
            resolved = pricer.legal(base)
            if resolved is not None and pricer.below_floor(resolved):
                pricer.counts["below_floor"] += len(ways)
                continue
            for way in ways:
                best = _grow(pricer, together(base, way), growth, most if len(space.layouts) > 1 else 0)
                if best is not None:
                    found.append(best)
                    most = max(most, _value(best, growth) // growth.step)
    ordered = sorted(found, key=lambda p: (-_value(p, growth), least_cost(p)))
    chosen: dict[tuple[object, ...], Priced] = {}
    for priced in ordered:
        chosen.setdefault(tuple(sorted(priced.candidate.kinds)), priced)
    return list(chosen.values())


def _grow(pricer: Pricer, way: CandidateChange, growth: Growth, beyond: int) -> Priced | None:
    """Return the plan with the largest value of the key that fits under the changes ``way``; None if none fits.

    Values are multiples of ``growth.step`` of more than ``beyond`` steps. The number of steps is doubled until the plan
    no longer fits, then searched by bisection.
    """
    fits, fails, best = beyond, beyond + 1, None
    while fails * growth.step <= MOST:
        priced = _at(pricer, way, growth, fails)
        if priced is None:
            break
        best, fits, fails = priced, fails, fails * 2
    while fails - fits > 1:
        middle = (fits + fails) // 2
        priced = _at(pricer, way, growth, middle)
        if priced is None:
            fails = middle
        else:
            best, fits = priced, middle
    return best


def _at(pricer: Pricer, way: CandidateChange, growth: Growth, count: int) -> Priced | None:
    """Return the plan with ``count`` steps of growth under the changes ``way``; None if it does not fit."""
    value = count * growth.step
    candidate = _to(pricer, way, growth.key, value)
    priced = pricer.price(join(way, candidate) if way.set else candidate)
    return priced if priced is not None and pricer.fits(priced) else None


def _to(pricer: Pricer, way: CandidateChange, key: str, value: int) -> CandidateChange:
    """Return the change of the key; a micro-batch that the global batch cannot hold makes the global batch grow.

    ``way``: changes of the layout that are made with it.
    """
    job, training = pricer.context.training, pricer.context.plan.training
    words = f"{key.rpartition('.')[2].replace('_', ' ')} {value}"
    if job is None:  # serving: more or longer requests, the same answers
        return CandidateChange(GROWN, words, {key: value}, cost=UNCHANGED, numerics=SAME)
    if key != BATCH:
        return CandidateChange(GROWN, words, {key: value}, cost=METHOD, numerics=OTHER)
    stated = training.global_batch_size if training else None
    global_batch = stated or job.micro_batch_size * job.layout.data * job.gradient_accumulation_steps
    sequences_per_pass = value * _data(job.layout, way)
    if global_batch % sequences_per_pass == 0:
        return CandidateChange(GROWN, f"{words} (same global batch)", {key: value})
    steps = max(1, global_batch // sequences_per_pass)
    grown = sequences_per_pass * steps
    change = {key: value, GLOBAL: grown} if stated is not None else {key: value, STEPS: steps}
    title = f"{words}, global batch {global_batch} -> {grown}"
    return CandidateChange(GROWN, title, change, cost=METHOD, numerics=OTHER)


def _value(priced: Priced, growth: Growth) -> int:
    """Return the value that a plan has for the key that grows."""
    job = priced.resolved.job
    if growth.setting and isinstance(job, InferenceJob):
        return int(getattr(job.engine, growth.setting))
    return int(getattr(job, growth.key.rpartition(".")[2]))


def _data(layout: Layout, way: CandidateChange) -> int:
    """Return data-parallel ranks under the changes of a layout."""
    names = ("tensor", "context", "pipeline")
    degrees = [way.set.get(f"parallelism.{name}", getattr(layout, name)) for name in names]
    return max(1, layout.world_size // math.prod(int(str(degree)) for degree in degrees))


NO_PRICES: Mapping[str, float] = MappingProxyType({})
OF_A_CLUSTER = 0.4
"""The share of the remaining time, or of that for one kind of GPU, for one of several sizes of cluster."""
LARGEST_CLUSTER = 8192
"""GPUs at which a search for clusters gives up."""


class Answer(Record):
    """The result of a search for one goal."""

    found: tuple[Priced, ...]
    """Best first. An empty change is the plan as written."""
    tally: LayoutTally
    space: dict[str, tuple[object, ...]]
    """Every key that was varied, with its values."""
    exhausted: bool
    """Whether every plan of the space was judged: then what was not found does not exist in it."""
    smallest: Priced | None = None
    """When nothing fits: the same training on the fewest GPUs of this kind on which something does."""


CHEAPEST = "cheapest"
OF_A_SIZE = 1
"""Plans that are kept of one kind of GPU and one number of them: the fastest one there costs least per token."""


def search(pricer: Pricer, goal: str, enough: int = 8, prices: Mapping[str, float] = NO_PRICES) -> Answer:
    """Return the answer to one goal. ``enough``: when this many of the fastest plans fit, slower ones are not
    estimated.

    ``prices``: of an hour of each GPU, which the goal ``cheapest`` asks for.

    Raises:
        UsageError: the goal makes no sense for this plan.
    """
    with uncollected():
        return _cheapest(pricer, prices) if goal == CHEAPEST else SEARCHES[goal](pricer, enough)


def _fit(pricer: Pricer, enough: int) -> Answer:
    """Search for the cheapest changes that fit; if only more GPUs do, also for the smallest cluster."""
    fit = Fit(pricer, thorough=True)
    found = fit.run()
    alone = all(p.resolved.gpu.name != pricer.context.resolved.gpu.name or _more(p, pricer) for p in found)
    tally = pricer.tally
    smallest = _smallest(pricer) if alone else None
    return Answer(
        found=tuple(found), tally=tally, space=_values(fit.tried, pricer), exhausted=fit.exhausted, smallest=smallest
    )


def _more(priced: Priced, pricer: Pricer) -> bool:
    return priced.resolved.job.layout.world_size > pricer.context.layout.world_size


def _throughput(pricer: Pricer, enough: int) -> Answer:
    """Search for the plans with the most tokens per second on the plan's GPUs."""
    _needs_time(pricer, "throughput")
    space = space_of(pricer.context, UNCHANGED, faster=True)
    found = fastest_first(pricer, space, enough)
    tally, whole = pricer.tally, not pricer.budget.spent
    smallest = None if found else _smallest(pricer)
    return Answer(tuple(found), tally, _values(space.every, pricer), exhausted=whole, smallest=smallest)


def _gpus(pricer: Pricer, enough: int) -> Answer:
    """Search for the fewest GPUs on which a plan fits, from small clusters to large ones."""
    layout = pricer.context.layout
    values: dict[str, tuple[object, ...]] = {}
    for nodes, gpus_per_node in clusters(layout, layout.world_size):
        space = space_of(pricer.context, UNCHANGED, nodes, gpus_per_node, faster=pricer.clock.written is not None)
        values = _merged(values, _values(space.every, pricer))
        found: list[Priced] = []
        with pricer.budget.part(OF_A_CLUSTER):
            found = fastest_first(pricer, space, enough)
        if found:
            return Answer(tuple(found), pricer.tally, values, exhausted=not pricer.budget.spent)
    tally, whole = pricer.tally, not pricer.budget.spent
    return Answer((), tally, values, exhausted=whole, smallest=_smallest(pricer))


def _cheapest(pricer: Pricer, prices: Mapping[str, float]) -> Answer:

    if prices:
        _needs_time(pricer, CHEAPEST)
    found, tried = cheapest(pricer, prices, OF_A_SIZE)
    return Answer(tuple(found), pricer.tally, _values(tried, pricer), exhausted=not pricer.budget.spent)


def _largest(growth: Callable[[TrainingJob | InferenceJob], Growth]) -> Callable[[Pricer, int], Answer]:
    def answer(pricer: Pricer, enough: int) -> Answer:
        """In the layout as written; in any other where that does not hold even the smallest."""
        space, grown = space_of(pricer.context, UNCHANGED), growth(pricer.context.job)
        for layouts, states in (((NOTHING,), (NOTHING,)), (space.layouts, space.states)):
            tried, found = space._replace(layouts=layouts, states=states), []
            with pricer.budget.part():
                found = largest(pricer, tried, grown)[:enough]
            if found:
                break
        tally, whole = pricer.tally, not pricer.budget.spent
        smallest = None if found else _smallest(pricer)
        values = _values(tried.every, pricer)
        return Answer(tuple(found), tally, values, exhausted=not found and whole, smallest=smallest)

    return answer


def _smallest(pricer: Pricer) -> Priced | None:
    """Return the first fitting plan on ever more GPUs of the same kind; leanest layouts first.

    What is kept of the hardware is kept for the answer, not for this way out of having none.
    """
    layout = pricer.context.layout
    kept = tuple(key for key in pricer.keep if key.partition(".")[0] != "hardware")
    if kept != pricer.keep:
        given = pricer
        pricer = Pricer(pricer.context, kept)
        pricer.watch, pricer.budget = given.watch, given.budget
    for nodes, gpus_per_node in clusters(layout, LARGEST_CLUSTER, above=layout.world_size):
        space = space_of(pricer.context, UNCHANGED, nodes, gpus_per_node)
        with pricer.budget.part(OF_A_CLUSTER):
            found = next(iter(explore(pricer, space)), None)
            if found is not None:
                return found
    return None


def _needs_time(pricer: Pricer, goal: str) -> None:
    """Refuse a goal that compares times if this plan's step has no modelled time."""
    if pricer.clock.written is None:
        raise UsageError(
            f"--goal {goal} needs the time of a step, which is not modelled for this plan",
            "it is for GPUs whose rates are known: name one of the catalog or state its rates; --goal fit does without",
        )


def _values(candidates: Iterable[CandidateChange], pricer: Pricer) -> dict[str, tuple[object, ...]]:
    """Return every key that the candidates change, with the values that they give it. Keys that must stay are left
    out.
    """
    found: dict[str, dict[str, object]] = {}
    for candidate in candidates:
        for key, value in candidate.set.items():
            if not any(key == kept or key.startswith(f"{kept}.") for kept in pricer.keep):
                found.setdefault(key, {})[str(value)] = value
    return {key: tuple(sorted(values.values(), key=_order)) for key, values in sorted(found.items())}


def _order(value: object) -> tuple[int, float, str]:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return (0, float(str(value)), "") if number else (1, 0.0, str(value))


def _merged(one: dict[str, tuple[object, ...]], other: dict[str, tuple[object, ...]]) -> dict[str, tuple[object, ...]]:
    both = {key: (*one.get(key, ()), *other.get(key, ())) for key in sorted({*one, *other})}
    return {key: tuple(sorted({str(v): v for v in values}.values(), key=_order)) for key, values in both.items()}


def _batch(job: TrainingJob | InferenceJob) -> Growth:
    if isinstance(job, TrainingJob):
        return Growth("training.micro_batch_size", 1)
    return Growth("inference.batch_size", 1) if job.engine is None else Growth("inference.max_num_seqs", 1, "sequences")


def _sequence(job: TrainingJob | InferenceJob) -> Growth:
    """Return how a sequence length grows: its key, and the tokens of one step, which all ranks of a group divide."""
    if not isinstance(job, TrainingJob):
        if job.engine is not None:
            return Growth("inference.max_model_len", 1024, "length")
        return Growth("inference.context_length", 1024)
    layout = job.layout
    parts = 2 * layout.context * layout.tensor
    return Growth("training.sequence_length", max(parts, 1024 // parts * parts or parts))


SEARCHES: dict[str, Callable[[Pricer, int], Answer]] = {
    "fit": _fit,
    "throughput": _throughput,
    "gpus": _gpus,
    "max-batch": _largest(_batch),
    "max-sequence": _largest(_sequence),
}


def lean(pricer: Pricer, found: Priced) -> Priced:
    """Return the plan without each change that saves neither memory nor time nor host memory once the others are made.

    A search makes all changes that cost no time together, and one of them may take another's effect away.
    """
    with pricer.budget.part():
        for part in found.candidate.parts:
            if part.cost != UNCHANGED or part.kind == GROWN or len(found.candidate.parts) == 1:
                continue
            rest = together(*(each for each in found.candidate.parts if each is not part))
            without = pricer.price(rest)
            if without is not None and pricer.fits(without) and _no_worse(without, found):
                found = without._replace(role=found.role)
    return found


def _no_worse(one: Priced, other: Priced) -> bool:
    """Say whether a plan needs no more memory and no more time than another, and sets fewer keys."""
    mine, theirs = one.estimate, other.estimate
    return (
        mine.needed_bytes <= theirs.needed_bytes
        and mine.needed_interval_bytes[1] <= theirs.needed_interval_bytes[1]
        and mine.host_bytes_per_node <= theirs.host_bytes_per_node
        and (one.slowdown or 0.0) <= (other.slowdown or 0.0)
        and len(one.changes) <= len(other.changes)
    )


WORSE = 2
"""Sizes of a cluster that may cost more than the best one before the search goes on with another GPU."""
FULL_NODE = 8


def money(priced: Priced, pricer: Pricer, prices: Mapping[str, float]) -> float | None:
    """Return what a million tokens cost: the price of an hour of all GPUs times the hours that the tokens take.

    None where the GPU has no price, or no rates from which its time would follow.
    """
    step, price = pricer.clock.step(priced.resolved), prices.get(priced.resolved.gpu.name)
    return None if step is None else per_million_tokens(price, step.tokens_per_second_per_gpu)


def cheapest(pricer: Pricer, prices: Mapping[str, float], enough: int) -> tuple[list[Priced], list[CandidateChange]]:
    """Return plans with the same results, those that cost least per token first, and all changes that were tried.

    Of one kind of GPU ever more are taken, until twice in a row more of them cost more per token.

    Raises:
        UsageError: there are no prices.
    """
    if not prices:
        raise UsageError(
            "--goal cheapest needs prices, and the configuration has none: memcheck ships no prices",
            "write what an hour of a GPU costs into memcheck.toml, or into [tool.memcheck.prices] of pyproject.toml:\n"
            + EXAMPLE,
        )
    found: list[tuple[float, Priced]] = []
    tried: list[CandidateChange] = []
    for position, gpu in enumerate(prices):
        with pricer.budget.part(1 / (len(prices) - position)):
            _on(gpu, pricer, prices, enough, found, tried)
    found.sort(key=lambda each: (float(f"{each[0]:.3g}"), each[1].resolved.job.layout.world_size, changed(each[1])))
    return [priced for _, priced in found], tried


def on_each_card(pricer: Pricer, prices: Mapping[str, float]) -> list[Priced]:
    """Return the plan with nothing changed but the GPU, on every GPU that has a price: those that cost least and fit
    first.
    """
    found: list[tuple[bool, float, int, Priced]] = []
    for position, gpu in enumerate(prices):
        priced = pricer.price(_card(gpu), prune=False)
        cost = None if priced is None else money(priced, pricer, prices)
        if priced is not None and cost is not None:
            found.append((not pricer.fits(priced), cost, position, priced))
    return [priced for *_, priced in sorted(found, key=lambda each: each[:3])]


def _card(gpu: str) -> CandidateChange:
    return CandidateChange("gpu", f"use {gpu}", {"hardware.gpu": gpu}, cost=HARDWARE, numerics=EQUIVALENT)


def _on(
    gpu: str,
    pricer: Pricer,
    prices: Mapping[str, float],
    enough: int,
    found: list[tuple[float, Priced]],
    tried: list[CandidateChange],
) -> None:
    """Put plans on one kind of GPU into ``found``, from the smallest cluster on."""
    layout = pricer.context.layout._replace(nodes=1, gpus_per_node=max(FULL_NODE, pricer.context.layout.gpus_per_node))
    least: float | None = None
    worse = 0
    for nodes, gpus_per_node in clusters(layout, LARGEST_CLUSTER):
        space = _with_gpu(gpu, space_of(pricer.context, UNCHANGED, nodes, gpus_per_node, faster=True))
        tried += space.every
        some: list[Priced] = []
        with pricer.budget.part(OF_A_CLUSTER):
            some = fastest_first(pricer, space, enough)
        costs = [(cost, each) for each in some if (cost := money(each, pricer, prices)) is not None]
        found += costs
        if not costs:
            if least is not None:
                return
            continue
        best = min(cost for cost, _ in costs)
        if least is not None and best >= least:
            worse += 1
            if worse == WORSE:
                return
        least = best if least is None else min(least, best)


def _with_gpu(gpu: str, space: Space) -> Space:
    """The space on another GPU."""
    return space._replace(layouts=tuple(together(each, _card(gpu)) for each in space.layouts))
