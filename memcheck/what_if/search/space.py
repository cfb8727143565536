"""What a search may change: layouts, changes of the states, changes of the step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import product

from memcheck.job.framework import Framework
from memcheck.job.types import InferenceJob, Layout, TrainingJob
from memcheck.models.types import Architecture
from memcheck.plan.read import with_changes
from memcheck.record import Record
from memcheck.rules.types import RuleContext
from memcheck.what_if.remedies.candidates import FREE, STAGE, either_way, same_hardware, serving
from memcheck.what_if.remedies.changes import (
    EQUIVALENT,
    METHOD,
    CandidateChange,
    degrees,
    experts_of,
    join,
    larger_gpus,
    more_nodes,
    width_of,
)
from memcheck.what_if.remedies.memory_keys import LOWER
from memcheck.what_if.remedies.price import Pricer

LEAST_TOKENS = 2048
"""Context parallelism is not taken further than to this many tokens of a sequence on each rank."""
MOST_STAGES = 64
VIRTUAL_STAGES = (2, 4)
RESHARD = "parallelism.reshard_after_forward"


class Degrees(Record):
    """The values that each degree may have."""

    tensor: tuple[int, ...]
    context: tuple[int, ...]
    pipeline: tuple[int, ...]
    expert: tuple[int, ...]


def training_layouts(
    context: RuleContext,
    job: TrainingJob,
    nodes: int | None = None,
    gpus_per_node: int | None = None,
    *,
    faster: bool = False,
    may_set: Callable[[str], bool] | None = None,
) -> Iterator[CandidateChange]:
    """Yield layouts of the job on its GPUs, or on others, with more sharding before less. Rules decide which are legal.

    ``faster``: also those that keep gathered parameters until backward. ``may_set``: no degree is changed whose key it
    refuses.
    """
    framework = context.framework
    if framework is None:
        return
    now = job.layout
    there = now._replace(nodes=nodes or now.nodes, gpus_per_node=gpus_per_node or now.gpus_per_node)
    degrees = degrees_of(framework, job, there)
    if may_set is not None:
        fixed = {name: (getattr(now, name),) for name in Degrees._fields if not may_set(f"parallelism.{name}")}
        degrees = degrees._replace(**fixed)
    keeps = faster and now.reshard_after_forward and RESHARD not in framework.lacks
    for tensor in degrees.tensor:
        for cp in degrees.context:
            for stages in degrees.pipeline:
                if there.world_size % (tensor * cp * stages):
                    continue
                data = there.world_size // (tensor * cp * stages)
                cut = there._replace(tensor=tensor, context=cp, pipeline=stages, data=data)
                cut = cut._replace(sequence=tensor > 1 and "sequence" in framework.parallelism.degrees)
                for placed in _experts(framework, job, cut, degrees):
                    for each in _schedules(framework, now, placed):
                        for sharded in _sharded(framework, now, each):
                            yield _candidate(framework, now, sharded)
                            if keeps and sharded.zero_stage == 3 and sharded.shard_group > 1:
                                yield _candidate(framework, now, sharded._replace(reshard_after_forward=False))


def _experts(framework: Framework, job: TrainingJob, cut: Layout, degrees: Degrees) -> Iterator[Layout]:
    """Yield experts dealt out over ranks, each of them whole, or cut over as many ranks as the layers are.

    Megatron-LM takes any degree for its experts, and the tensor degree unless told otherwise; torchtitan takes 1 or the
    tensor degree, in releases that have it: those of plans that state it.
    """
    now, width = job.layout, width_of(job.architecture)
    ranks = cut.data * cut.context * cut.tensor
    for expert in degrees.expert:
        for parts in sorted(_parts(framework, job, cut, expert)):
            if parts in (1, now.expert_tensor) or not (ranks % (expert * parts) or width % parts):
                yield cut._replace(expert=expert, expert_tensor=parts)


def _parts(framework: Framework, job: TrainingJob, cut: Layout, expert: int) -> set[int]:
    """Return ranks over which an expert may be cut."""
    now = job.layout
    if experts_of(job.architecture) == 1:
        return {now.expert_tensor}
    found = {1}
    if framework.has_expert_tensor_groups:
        found |= {*divisors(cut.tensor), now.expert_tensor}
    elif "expert_tensor" in framework.parallelism.degrees and now.expert_tensor > 1 and expert > 1:
        found.add(cut.tensor)
    if (expert, cut.tensor) == (now.expert, now.tensor):
        found.add(now.expert_tensor)
    return found


def degrees_of(framework: Framework, job: TrainingJob, layout: Layout) -> Degrees:
    """Return what the framework has, within a node for tensor parallelism."""
    able, now = framework.parallelism.degrees, job.layout
    model = job.architecture
    layers = model.num_layers if isinstance(model, Architecture) else model.layers
    tensor = divisors(layout.gpus_per_node) if "tensor" in able else (1,)
    longest = max(1, job.sequence_length // LEAST_TOKENS)
    cp = powers(min(longest, layout.world_size)) if "context" in able else (1,)
    stages = divisors(layout.world_size, min(layers, MOST_STAGES)) if "pipeline" in able else (1,)
    deals = "expert" in able and (
        now.expert > 1 or not framework.has_user_loop
    )  # a loop of one's own has it or has not
    expert = powers(experts_of(model)) if deals else (1,)
    return Degrees(
        *(
            tuple(sorted({*values, written}))
            for values, written in (
                (tensor, now.tensor),
                (cp, now.context),
                (stages, now.pipeline),
                (expert, now.expert),
            )
        )
    )


LIMITS = ("tokens", "sequences")
"""Kinds of change of a serving engine's passes: a search of every layout leaves them as they are."""


def serving_layouts(job: InferenceJob, nodes: int, gpus_per_node: int) -> Iterator[CandidateChange]:
    """Yield tensor and pipeline parallelism of a served model; the rest of the GPUs serve copies.

    Experts that nothing is said about are cut as the layers are. Where the plan says how they are placed, they stay so,
    are cut like that, or are dealt out over the same ranks.
    """
    world, now = nodes * gpus_per_node, job.layout
    model = job.architecture
    if job.engine is not None:
        for tensor in reversed(divisors(gpus_per_node)):
            ranks: dict[str, object] = {}
            _put(ranks, "hardware.nodes", nodes, now.nodes)
            _put(ranks, "hardware.gpus_per_node", gpus_per_node, now.gpus_per_node)
            _put(ranks, "inference.tensor", tensor, job.engine.tensor)
            yield CandidateChange("layout" if ranks else "", _words(ranks), ranks, numerics=EQUIVALENT)
        return
    layers = model.num_layers if isinstance(model, Architecture) else 1
    placed = now.expert * now.expert_tensor > 1
    for tensor in reversed(divisors(gpus_per_node)):  # a pipeline makes a token wait for every stage
        for stages in divisors(world // tensor, min(layers, MOST_STAGES)):
            experts = {(1, 1), (tensor, 1), (now.expert, now.expert_tensor)} if placed else {(1, 1)}
            for expert, parts in sorted(experts):
                changes: dict[str, object] = {}
                _put(changes, "hardware.nodes", nodes, now.nodes)
                _put(changes, "hardware.gpus_per_node", gpus_per_node, now.gpus_per_node)
                _put(changes, "parallelism.tensor", tensor, now.tensor)
                _put(changes, "parallelism.pipeline", stages, now.pipeline)
                _put(changes, "parallelism.expert", expert, now.expert)
                _put(changes, "parallelism.expert_tensor", parts, now.expert_tensor)
                yield CandidateChange("layout" if changes else "", _words(changes), changes, numerics=EQUIVALENT)


def _schedules(framework: Framework, now: Layout, cut: Layout) -> Iterator[Layout]:
    """Yield pipeline schedules, the one with the least memory first."""
    if cut.pipeline == 1:
        yield cut._replace(pipeline_schedule="1f1b", virtual_stages=1)
        return
    for schedule in dict.fromkeys(("1f1b", "zero-bubble", "dualpipe", "interleaved-1f1b", now.pipeline_schedule)):
        if schedule not in framework.parallelism.schedules:
            continue
        virtual = {*VIRTUAL_STAGES, now.virtual_stages} - {1} if schedule == "interleaved-1f1b" else {1}
        virtual = {2} if schedule == "dualpipe" else virtual
        for v in sorted(virtual):
            yield cut._replace(pipeline_schedule=schedule, virtual_stages=v)


def _sharded(framework: Framework, now: Layout, cut: Layout) -> Iterator[Layout]:
    """Yield ZeRO stages, the most sharding first; over all ranks, over those of a node, over as many as now."""
    ranks = cut.data * cut.context
    if ranks == 1:
        yield cut._replace(zero_stage=0, shard_group=1)
        return
    for stage in sorted(framework.parallelism.zero_stages, reverse=True):
        if stage == 0:
            yield cut._replace(zero_stage=0, shard_group=1)
            continue
        near = max(1, cut.gpus_per_node // cut.tensor)
        groups = {ranks} | {g for g in (near, now.shard_group) if 1 < g < ranks and ranks % g == 0}
        if framework.has_sharding_engine or stage < 3:
            groups = {ranks} | ({now.shard_group} & groups if now.zero_stage == stage else set())
        for group in sorted(groups, reverse=True):
            yield cut._replace(zero_stage=stage, shard_group=group)


def _candidate(framework: Framework, now: Layout, cut: Layout) -> CandidateChange:
    """Return the layout as changes of the plan's keys: only of those that are not what they are."""
    changes: dict[str, object] = {}
    for key in ("nodes", "gpus_per_node"):
        _put(changes, f"hardware.{key}", getattr(cut, key), getattr(now, key))
    for key in ("tensor", "context", "pipeline", "expert", "expert_tensor", "zero_stage"):
        _put(changes, f"parallelism.{key}", getattr(cut, key), getattr(now, key))
    usual = framework.parallelism.sequence_default if cut.tensor > 1 and now.tensor == 1 else now.sequence
    _put(changes, "parallelism.sequence", cut.sequence, usual and (cut.tensor > 1 or now.sequence))
    if cut.pipeline > 1 or now.virtual_stages > 1:
        _put(changes, "parallelism.virtual_stages", cut.virtual_stages, now.virtual_stages)
    if cut.pipeline > 1:
        _put(changes, "parallelism.pipeline_schedule", cut.pipeline_schedule, now.pipeline_schedule)
    _put(changes, RESHARD, cut.reshard_after_forward, now.reshard_after_forward)
    whole = cut.shard_group == cut.data * cut.context
    if cut.zero_stage and not (whole and now.shard_group in (1, now.data * now.context)):
        _put(changes, "parallelism.shard_group", "auto" if whole else cut.shard_group, now.shard_group)
    return CandidateChange("layout" if changes else "", _words(changes), changes, numerics=EQUIVALENT)


def _words(changes: dict[str, object]) -> str:
    told = {key: str(each).lower() if isinstance(each, bool) else each for key, each in changes.items()}
    return ", ".join(f"{key.rpartition('.')[2].replace('_', ' ')} {each}" for key, each in told.items())


def _put(changes: dict[str, object], key: str, value: object, now: object) -> None:
    if value != now:
        changes[key] = value


def divisors(number: int, most: int | None = None) -> tuple[int, ...]:
    """Divisors up to ``most``."""
    return tuple(n for n in range(1, min(number, most or number) + 1) if number % n == 0)


def powers(most: int) -> tuple[int, ...]:
    """Powers of two up to ``most``."""
    return tuple(1 << n for n in range(max(1, most).bit_length()))


class Opened:
    """The changes that the highest ZeRO stage offers for a plan and its own stage does not.

    The answer for the last plan is kept: one search asks for it several times, and it takes an estimate.
    """

    def __init__(self) -> None:
        self._last: tuple[RuleContext, tuple[CandidateChange, ...]] | None = None

    def by_sharding(self, context: RuleContext) -> tuple[CandidateChange, ...]:
        """Return the changes, each with the stage that it needs; empty where the plan has the highest stage already."""
        if self._last is None or self._last[0] is not context:
            self._last = context, tuple(_found(context))
        return self._last[1]


OPENED = Opened()


def _found(context: RuleContext) -> list[CandidateChange]:
    """Return what is offered for the sharded plan alone; nothing where the plan cannot be sharded."""
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
    """Return single changes, on this hardware and on other."""
    job = context.job
    if not isinstance(job, TrainingJob):
        return [*serving(context, job), *larger_gpus(context)]
    return [
        *same_hardware(context, job),
        *OPENED.by_sharding(context),
        *degrees(context, job),
        *more_nodes(context, job),
        *larger_gpus(context),
    ]


def leaves_activations(kind: str, before: TrainingJob, after: TrainingJob) -> bool:
    """Say whether a change of this kind leaves alive at every instant what activations were.

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
    """Return the space around a plan, on as many GPUs as it has or on others.

    ``most``: how much may be asked for (UNCHANGED: nothing that changes the results of the training). ``faster``: with
    changes that need more memory, too. ``keys``: only the changes that set nothing but these, or fields of them.
    """
    may_set = None if keys is None else _one_of(tuple(keys))
    job = context.job
    opened: list[CandidateChange] = []
    there = (nodes or job.layout.nodes, gpus_per_node or job.layout.gpus_per_node)
    if isinstance(job, InferenceJob):
        options = [c for c in serving(context, job) if c.kind not in ("tensor", *LIMITS)]
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
    """Return the change without the ZeRO stage that it needs, which the layouts hold."""
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
    """Return alternatives by kind, what is written last: what frees the most memory comes first. Free changes are one.

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
    """Return the changes among some choices, as one."""
    real = [each for each in choice if each.set]
    return join(*real) if real else NOTHING
