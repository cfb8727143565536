"""What a search may change: layouts, changes of the states, changes of the step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product

from memcheck.job.types import InferenceJob, TrainingJob
from memcheck.record import Record
from memcheck.rules.types import RuleContext
from memcheck.what_if.remedies.candidates import FREE, STAGE, either_way, same_hardware
from memcheck.what_if.remedies.degrees import degrees
from memcheck.what_if.remedies.hardware import larger_gpus, more_nodes
from memcheck.what_if.remedies.memory_keys import LOWER
from memcheck.what_if.remedies.types import METHOD, CandidateChange, join
from memcheck.what_if.search.layouts import serving_layouts, training_layouts
from memcheck.what_if.search.opened import OPENED

NOTHING = CandidateChange("", "as written", {})
STATES = ("optimizer", "precision", "offload", "offload-parameters", "method", "weights")
"""Kinds of change that move the states which rest between steps; the other ones do not."""
APART = ("zero", "group", "sequence", "sequence-length")
"""Kinds of change that the layouts hold already, and shorter sequences, which are tried with single other changes."""
RESTING = ("zero", "group", "offload")
"""Kinds of change that divide or move the states that are resident between steps, independent of the step."""
NODES = "nodes"
"""The kind of change that divides the resident states over more nodes, and gives each node fewer micro-batches."""


class Space(Record):
    """The product of layouts, changes of states and changes of the step; each with what is written among them."""

    layouts: tuple[CandidateChange, ...]
    states: tuple[CandidateChange, ...]
    steps: tuple[CandidateChange, ...]

    @property
    def size(self) -> int:
        """How many plans it has."""
        return len(self.layouts) * len(self.states) * len(self.steps)

    @property
    def every(self) -> tuple[CandidateChange, ...]:
        """All changes of which it is made."""
        return (*self.layouts, *self.states, *self.steps)


def singles(context: RuleContext) -> list[CandidateChange]:
    """Single changes, on this hardware and on other."""
    job = context.job
    if not isinstance(job, TrainingJob):
        from memcheck.what_if.remedies.serving import serving

        return [*serving(context, job), *larger_gpus(context)]
    return [
        *same_hardware(context, job),
        *OPENED.by_sharding(context),
        *degrees(context, job),
        *more_nodes(context, job),
        *larger_gpus(context),
    ]


def leaves_activations(kind: str, before: TrainingJob, after: TrainingJob) -> bool:
    """Whether a change of this kind leaves alive at every instant what activations were.

    More nodes do while micro-batches fill the pipeline all the same: a rank of an interleaved schedule has forwards of
    its chunks in flight for fewer than twice as many micro-batches as there are ranks, and a loop holds the output of
    the one before. Stages of ZeRO do not where FSDP takes the place of autocast, which keeps copies of weights.
    """
    if kind != NODES:
        return kind in RESTING and before.recipe.autocast == after.recipe.autocast
    return after.gradient_accumulation_steps >= 2 * after.layout.pipeline


def space_of(
    context: RuleContext,
    most: int = METHOD,
    nodes: int | None = None,
    gpus_per_node: int | None = None,
    *,
    faster: bool = False,
    keys: Iterable[str] | None = None,
) -> Space:
    """The space around a plan, on as many GPUs as it has or on others.

    ``most``: how much may be asked for (UNCHANGED: nothing that changes the results of the training). ``faster``: with
    changes that need more memory, too. ``keys``: only the changes that set nothing but these, or fields of them.
    """
    may_set = None if keys is None else _one_of(tuple(keys))
    job = context.job
    opened: list[CandidateChange] = []
    there = (nodes or job.layout.nodes, gpus_per_node or job.layout.gpus_per_node)
    if isinstance(job, InferenceJob):
        from memcheck.what_if.remedies.serving import serving

        options = [c for c in serving(context, job) if c.kind != "tensor"]
        layouts = tuple(serving_layouts(job, *there))
    else:
        options = [_within(c) for c in same_hardware(context, job) if c.kind not in APART]
        opened = [_within(c) for c in OPENED.by_sharding(context) if c.kind not in APART]
        layouts = tuple(training_layouts(context, job, *there, faster=faster, may_set=may_set))
        if faster:
            instead = list(either_way(context, job))
            replaced = {c.kind for c in instead} - {"offload"}
            options = [c for c in options if c.kind not in replaced] + instead
    options, opened = ([c for c in some if c.cost <= most] for some in (options, opened))
    states = _knobs([c for c in options if c.kind in STATES], [c for c in opened if c.kind in STATES])
    steps = _knobs([c for c in options if c.kind not in STATES], [c for c in opened if c.kind not in STATES])
    if may_set is not None:
        layouts = tuple(_that_set(layouts, may_set))
        states, steps = ([_that_set(knob, may_set) for knob in knobs] for knobs in (states, steps))
    return Space(layouts, _products(states), _products(steps))


def _within(change: CandidateChange) -> CandidateChange:
    """The change without the ZeRO stage that it needs, which the layouts hold."""
    if STAGE not in change.set:
        return change
    return change._replace(set={key: value for key, value in change.set.items() if key != STAGE})


def _one_of(keys: tuple[str, ...]) -> Callable[[str], bool]:
    """Whether a key is one of some, a field of one, or has one as its field."""
    return lambda key: any(key == k or key.startswith(f"{k}.") or k.startswith(f"{key}.") for k in keys)


def _that_set(changes: Iterable[CandidateChange], may_set: Callable[[str], bool]) -> list[CandidateChange]:
    """The changes that set nothing but what may be."""
    return [change for change in changes if all(map(may_set, change.set))]


def _knobs(options: list[CandidateChange], opened: list[CandidateChange]) -> list[list[CandidateChange]]:
    """Alternatives by kind, what is written last: what frees the most memory comes first. Free changes are one.

    ``opened``: changes that only a sharded plan can make. Free ones among them are made together with the other free
    changes, or left out: an unsharded layout cannot make them.
    """
    kinds: dict[str, list[CandidateChange]] = {}
    for option in options:
        kinds.setdefault(option.kind, []).append(option)
    free = [kinds.pop(kind)[-1] for kind in (*FREE, *LOWER) if kind in kinds]
    further = {option.kind: option for option in opened if option.kind in (*FREE, *LOWER)}
    for option in opened:
        if option.kind not in further:
            kinds.setdefault(option.kind, []).append(option)
    knobs = [[*reversed(each), NOTHING] for each in kinds.values()]
    every = [*(each for each in free if each.kind not in further), *further.values()]
    together_free = [join(*some) for some in (every if further else [], free) if some]
    return [[*together_free, NOTHING], *knobs] if together_free else knobs


def _products(knobs: list[list[CandidateChange]]) -> tuple[CandidateChange, ...]:
    """Every combination of the knobs, as one change each."""
    return tuple(together(*choice) for choice in product(*knobs))


def together(*choice: CandidateChange) -> CandidateChange:
    """The changes among some choices, as one."""
    real = [each for each in choice if each.set]
    return join(*real) if real else NOTHING
