"""What can be asked for: the least change, the fastest step, the fewest GPUs, the largest batch or sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from memcheck.errors import UsageError
from memcheck.job.types import TrainingJob
from memcheck.record import Record
from memcheck.what_if.points.garbage import uncollected
from memcheck.what_if.remedies.price import LayoutTally, Pricer
from memcheck.what_if.remedies.types import UNCHANGED, CandidateChange, Priced
from memcheck.what_if.search.cluster import clusters
from memcheck.what_if.search.explore import explore, fastest_first
from memcheck.what_if.search.fit import Fit
from memcheck.what_if.search.largest import Growth, largest
from memcheck.what_if.search.space import NOTHING, space_of

NO_PRICES: Mapping[str, float] = MappingProxyType({})
OF_A_CLUSTER = 0.4
"""The share of the remaining time for one of several sizes of cluster."""
LARGEST_CLUSTER = 8192
"""GPUs at which the search for the smallest cluster gives up."""


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
    """The answer to one goal. ``enough``: when this many of the fastest plans fit, slower ones are not estimated.

    ``prices``: of an hour of each GPU, which the goal ``cheapest`` asks for.

    Raises:
        UsageError: the goal makes no sense for this plan.
    """
    with uncollected():
        return _cheapest(pricer, prices) if goal == CHEAPEST else SEARCHES[goal](pricer, enough)


def _fit(pricer: Pricer, enough: int) -> Answer:
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
    _needs_time(pricer, "throughput")
    space = space_of(pricer.context, UNCHANGED, faster=True)
    found = fastest_first(pricer, space, enough)
    tally, whole = pricer.tally, not pricer.budget.spent
    smallest = None if found else _smallest(pricer)
    return Answer(tuple(found), tally, _values(space.every, pricer), exhausted=whole, smallest=smallest)


def _gpus(pricer: Pricer, enough: int) -> Answer:
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
    from memcheck.what_if.search.cheapest import cheapest

    if prices:
        _needs_time(pricer, CHEAPEST)
    found, tried = cheapest(pricer, prices, OF_A_SIZE)
    return Answer(tuple(found), pricer.tally, _values(tried, pricer), exhausted=not pricer.budget.spent)


def _largest(growth: Callable[[TrainingJob | None], Growth]) -> Callable[[Pricer, int], Answer]:
    def answer(pricer: Pricer, enough: int) -> Answer:
        """In the layout as written; in any other where that does not hold even the smallest."""
        space, grown = space_of(pricer.context, UNCHANGED), growth(pricer.context.training)
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
    """The first fitting plan on ever more GPUs of the same kind; leanest layouts first.

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
    if pricer.clock.written is None:
        raise UsageError(
            f"--goal {goal} needs the time of a step, which is not modelled for this plan",
            "it is for GPUs whose rates are known: name one of the catalog or state its rates; --goal fit does without",
        )


def _values(candidates: Iterable[CandidateChange], pricer: Pricer) -> dict[str, tuple[object, ...]]:
    """Every key that the candidates change, with the values that they give it. Keys that must stay are left out."""
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


def _batch(job: TrainingJob | None) -> Growth:
    return Growth("inference.batch_size" if job is None else "training.micro_batch_size", 1)


def _sequence(job: TrainingJob | None) -> Growth:
    if job is None:
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
