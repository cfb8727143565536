"""A rank that holds several stages of a pipeline: the order in which it runs its chunks, and its step chunk by chunk.

Source: torch 2.13 distributed/pipelining/schedules.py (ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble,
ScheduleDualPipeV, _get_warmup_ops, _get_1f1b_rank_ops, _add_unshard_reshard). A rank holds every ``pipeline``-th stage,
or under DualPipeV one from each end. Micro-batches come in rounds, each of which passes all chunks before the next one
starts. A chunk's gradients are reduced after its last backward.

Source of a backward of inputs alone, followed by that of the weights: torch 2.13 distributed/pipelining/_backward.py
(stage_backward_input, stage_backward_weight).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from memcheck.accounts.program import Recorder
from memcheck.accounts.ranks import Always
from memcheck.accounts.sizes import NamedCurve
from memcheck.accounts.unit import Part, Unit
from memcheck.frameworks.torch.data_parallel import (
    DataParallel,
    MicroBatch,
    NamedRun,
    StepSizes,
    StepUnits,
    UnitGroups,
)
from memcheck.frameworks.torch.fsdp import NO_GROUP, Group
from memcheck.frameworks.torch.model_buffers import ModelBuffers
from memcheck.frameworks.torch.pipelining import parts
from memcheck.frameworks.torch.rank_units import Run, Units
from memcheck.frameworks.torch.step import Step
from memcheck.frameworks.torch.step_options import Schedule, StepOptions, step_sizes, wrapped_kinds
from memcheck.job.types import Layout, TrainingJob
from memcheck.record import Record

GATHERED = 3
"""Chunks whose parameters are gathered at once: those that come next (``max_active_stages``)."""
ROUNDS = 3
"""Rounds beyond which others repeat the second."""


class ChunkPass(Record):
    """One micro-batch through one chunk, backward included."""

    chunk: int
    first: bool
    """The chunk's first micro-batch."""
    last: bool
    muted: bool
    """Whether the forward of this pass cannot be the highest moment of the step."""
    others: tuple[int, ...]
    """Other micro-batches in flight during this pass's backward, in each chunk."""
    also_gathered: tuple[int, ...]
    """Other chunks whose parameters are gathered then."""
    split: bool = False
    """Whether the backward first makes gradients of inputs alone: the graph stays alive until the backward of the
    weights.
    """
    waiting: tuple[int, ...] = ()
    """Other micro-batches in flight whose backward of the weights is still to come, in each chunk."""


def chunk_parts(num_layers: int, layout: Layout, rank: int) -> tuple[Part, ...]:
    """What each chunk of a rank holds, in the order of the forward."""
    every = parts(num_layers, layout.pipeline * layout.virtual_stages, layout.fewer_layers)
    return tuple([every[stage] for stage in stages_of(layout, rank)])


def stages_of(layout: Layout, rank: int) -> tuple[int, ...]:
    """The numbers of a rank's stages."""
    ways = layout.pipeline
    if layout.pipeline_schedule == "dualpipe" and layout.virtual_stages > 1:
        return rank, 2 * ways - 1 - rank
    return tuple(range(rank, ways * layout.virtual_stages, ways))


def enough(layout: Layout, micro_batches: int) -> int:
    """Micro-batches beyond which others repeat those before."""
    rounds = max(1, micro_batches // layout.pipeline)
    return micro_batches // rounds * min(rounds, ROUNDS)


def passes(layout: Layout, rank: int, micro_batches: int) -> tuple[ChunkPass, ...]:
    """The passes that differ: a chunk's first backward, the one with most other micro-batches in flight, the last.

    Chunk by chunk from the last where there is one round; else every chunk's first ones come before others' last ones.
    """
    return _different(layout.pipeline_schedule, layout.pipeline, layout.virtual_stages, rank, micro_batches)


@lru_cache(maxsize=512)
def _different(schedule: str, ways: int, chunks: int, rank: int, micro_batches: int) -> tuple[ChunkPass, ...]:
    rounds = max(1, micro_batches // ways)
    every = list(_passes(ORDERS.get(schedule, _interleaved)(ways, chunks, rank, micro_batches), chunks, micro_batches))
    most = sum(every[0].others) + 1
    at_once = most == micro_batches * chunks
    found: list[list[ChunkPass]] = [[], [], []]
    for chunk in reversed(range(chunks)):
        mine = [each for each in every if each.chunk == chunk]
        also_gathered = max((each.also_gathered for each in mine), key=len)
        first, middle, last = mine[0], mine[1:-1], mine[-1]
        found[0].append(first._replace(also_gathered=also_gathered, muted=rounds > 1 or chunk < chunks - 1))
        if middle:
            fullest = [max(middle, key=lambda each: sum(each.others))]
            if schedule in ORDERS:  # a micro-batch that waits holds more in layers, and less in the head
                fullest = list({(each.others, each.waiting): each for each in middle}.values())
            muted = at_once or (rounds == 1 and chunk < chunks - 1)
            found[1] += [each._replace(also_gathered=also_gathered, muted=muted) for each in fullest]
        if not first.last:
            found[2].append(
                last._replace(also_gathered=also_gathered, muted=at_once or (rounds == 1 and chunk < chunks - 1))
            )
    if rounds > 1:
        return tuple(each for some in found for each in some)
    return tuple(sorted((each for some in found for each in some), key=lambda each: -each.chunk))


def split_passes(layout: Layout, rank: int) -> tuple[int, int]:
    """The number of backwards of inputs alone that a rank runs before any of weights, and the number that each further
    micro-batch adds.
    """
    order = ORDERS.get(layout.pipeline_schedule)
    if order is None:
        return 0, 0
    ways = layout.pipeline
    fewer, more = (
        sum(kind == "I" for kind, _ in order(ways, layout.virtual_stages, rank, rounds * ways)) for rounds in (2, 3)
    )
    each = (more - fewer) // ways
    return fewer - 2 * ways * each, each


Action = tuple[str, int]
"""A forward, a backward, one of the inputs or of the weights alone (``F``, ``B``, ``I``, ``W``), and the chunk."""


def _passes(actions: list[Action], chunks: int, micro_batches: int) -> Iterator[ChunkPass]:
    """Every pass, in the order of the backward."""
    in_flight, done, waiting = [0] * chunks, [0] * chunks, [0] * chunks
    for number, (kind, chunk) in enumerate(actions):
        if kind == "F":
            in_flight[chunk] += 1
            continue
        if kind == "W":
            in_flight[chunk] -= 1
            waiting[chunk] -= 1
            continue
        done[chunk] += 1
        others = [count - (index == chunk) for index, count in enumerate(in_flight)]
        following = dict.fromkeys(each for _, each in actions[number:])
        also_gathered = tuple([each for each in following if each != chunk][: GATHERED - 1])
        yield ChunkPass(
            chunk=chunk,
            first=done[chunk] == 1,
            last=done[chunk] == micro_batches,
            muted=False,
            others=tuple(others),
            also_gathered=also_gathered,
            split=kind == "I",
            waiting=tuple(waiting),
        )
        in_flight[chunk] -= kind == "B"
        waiting[chunk] += kind == "I"


def _interleaved(ways: int, chunks: int, rank: int, micro_batches: int) -> list[Action]:
    """Interleaved 1F1B, in the order in which a rank runs it."""
    each_round = micro_batches // max(1, micro_batches // ways)
    every = micro_batches * chunks
    warm_up = min((chunks - 1) * each_round + 2 * (ways - 1 - rank), every)
    found = [("F", step // each_round % chunks) for step in range(warm_up)]
    for step in range(every):
        if warm_up + step < every:
            found.append(("F", (warm_up + step) // each_round % chunks))
        found.append(("B", chunks - 1 - step // each_round % chunks))
    return found


def _zero_bubble(ways: int, chunks: int, rank: int, micro_batches: int) -> list[Action]:
    """One more forward ahead for each rank that follows; as many backwards of inputs as there are earlier ranks, then
    one of weights.
    """
    each_round = micro_batches // max(1, micro_batches // ways)
    every = micro_batches * chunks
    warm_up = min((chunks - 1) * each_round + ways - 1 - rank, every)
    back = [chunks - 1 - step // each_round % chunks for step in range(every)]
    found = [("F", step // each_round % chunks) for step in range(warm_up)]
    for step in range(every):
        if warm_up + step < every:
            found.append(("F", (warm_up + step) // each_round % chunks))
        found.append(("I", back[step]))
        if step >= rank:
            found.append(("W", back[step - rank]))
    found += [("W", chunk) for chunk in back[max(0, every - rank) :]]
    return _whole_in_front(found, rank)


def _dualpipe(ways: int, chunks: int, rank: int, micro_batches: int) -> list[Action]:
    """DualPipeV: chunk 0 from the front, chunk 1 from the back (_calculate_single_rank_operations, step by step)."""
    found: list[Action] = [("F", 0)] * (2 * (ways - rank - 1)) + [("F", 0), ("F", 1)] * (rank + 1)
    found += [("I", 1), ("W", 1), ("F", 1)] * (ways - rank - 1)
    found += [("F", 0), ("B", 1), ("F", 1), ("B", 0)] * max(0, micro_batches - 2 * ways + rank + 1)
    found += [("B", 1), ("F", 1), ("B", 0)] * (ways - rank - 1)
    waiting: list[int] = []
    half = (rank + 1) // 2
    for step in range(rank + 1):
        for chunk in (1, 0):
            split = step > half or (step == half and (rank % 2 == 1 or chunk == 0))
            found.append(("I" if split else "B", chunk))
            waiting += [chunk] if split else []
    for _ in range(ways - rank - 1):
        found += [("W", waiting.pop(0))] if waiting else []
        found.append(("I", 0))
        waiting.append(0)
    found += [("W", chunk) for chunk in waiting]
    return _whole_in_front(found, rank)


def _whole_in_front(actions: list[Action], rank: int) -> list[Action]:
    """The first stage's backward, which is not split: it runs as a whole where that of its weights would (stage.py,
    backward_weight_one_chunk).
    """
    if rank:
        return actions
    return [("B" if each == ("W", 0) else each[0], each[1]) for each in actions if each != ("I", 0)]


ORDERS: dict[str, Callable[[int, int, int, int], list[Action]]] = {"zero-bubble": _zero_bubble, "dualpipe": _dualpipe}
"""Schedules that split the backward."""


class ChunkStep(Step):
    """Records the passes of one chunk, whose stage is a root of FSDP2's by itself."""

    def __init__(self, options: StepOptions, step_units: StepUnits, recorder: Recorder, parallel: DataParallel) -> None:
        super().__init__(options, step_units, recorder, parallel)
        self.split = self.unreduced = False

    def run_pass(self, each: ChunkPass, held: int) -> None:
        """A micro-batch's pass, whose backward is split or whole. FSDP2's hooks run on every gradient that exists after
        it. ``held``: what other micro-batches hold.
        """
        self.split = each.split
        if self.unreduced and not each.split:
            self._keep_unreduced(-1)
        micro_batch = MicroBatch(each.first, each.last, min(sum(each.others), self.border.sends))
        self.run_micro_batch(micro_batch, held, muted=each.muted)

    def after_unit_backward(self, i: int, curve: NamedCurve) -> None:
        """The graph stays, with the gradients from which those of the weights are computed."""
        if self.split:
            self._hold_graph_of(curve, 1)

    def end_backward(self, micro_batch: MicroBatch) -> None:
        """The backward of the weights. The gradients of all micro-batches are reduced after the last one's."""
        if not self.split:
            return
        self.recorder.mark("backward", "gradients of the weights")
        for unit in self.units:
            self._hold_graph_of(self.curve(unit, micro_batch.first), -1)
        if self.parallel.hooks_gradients and self.unreduced == micro_batch.last:
            self._keep_unreduced(-1 if micro_batch.last else 1)

    def _hold_graph_of(self, curve: NamedCurve, sign: int) -> None:
        self.recorder.hold_bundle(curve.saved, sign)
        self.recorder.hold("temporaries", curve.for_weights, sign)

    def _keep_unreduced(self, sign: int) -> None:
        """Gradients of weights that FSDP2's hooks have not seen, in the dtype in which they wait: the next
        micro-batch's backward of inputs adds to them. Those of the last stage's layers follow all of its round's.
        """
        self.unreduced = sign > 0
        first = len(self.units) - 1 if self.units[-1].kind == "head" else 0
        each = [(self.units[i].first_curve.gradients, end - i) for i, end in self.layer_groups if i >= first]
        self.recorder.hold_amount("gradients", tuple(each), sign)


def record_chunks(
    options: StepOptions,
    runs: Sequence[NamedRun],
    groups: Sequence[UnitGroups],
    root: Group,
    sizes: Sequence[StepSizes],
    recorder: Recorder,
    own_sizes: int,
) -> None:
    """Every pass in its order. ``runs``: those of all chunks; ``root``: the group of embedding or of norm and head;
    ``own_sizes``: the place of the first size of the strategy's own.
    """
    steps: list[ChunkStep] = []
    start = 0
    schedule = options.schedule
    for count, rooted, beyond in zip(schedule.chunk_runs, schedule.chunk_roots, sizes, strict=True):
        end = start + count
        step_units = StepUnits(runs[start:end], groups[start:end], root if rooted else NO_GROUP, beyond)
        steps.append(ChunkStep(options, step_units, recorder, options.parallel.hooks(recorder, step_units, own_sizes)))
        start = end
    for step in steps:
        step.hold_layer_states()
    recorder.mark("init", "states at rest")
    for step in steps:
        step.parallel.begin_step()
    left = [list(beyond.held) for beyond in sizes]
    for each in schedule.passes:
        own = steps[each.chunk]
        if each.first and own.units[-1].kind == "head":
            own.hold_previous_graph(1)
        for other in each.also_gathered:
            steps[other].parallel.hold_gathered(1)
        own.run_pass(each, left[each.chunk].pop(0))
        for other in each.also_gathered:
            steps[other].parallel.hold_gathered(-1)
    recorder.mark("optimizer", "optimizer step")


def chunked_step(
    job: TrainingJob, units: Units, schedule: Schedule, held: tuple[Part, ...], rank: int
) -> tuple[Schedule, list[StepSizes]]:
    """The schedule with the passes of the rank's chunks, and the sizes of each chunk. ``held``: what each one holds."""
    layout = job.layout
    found = passes(layout, rank, enough(layout, job.run_micro_batches))
    runs = [units.runs(part) for part in held]
    buffers = [ModelBuffers(job, units.architecture, part, units.base) for part in held]
    saved = [_saved(mine, own) for mine, own in zip(runs, buffers, strict=True)]
    kept = [sum(run.times * _kept(run.unit) for run in mine) for mine in runs]
    sizes = []
    for chunk, (mine, own) in enumerate(zip(runs, buffers, strict=True)):
        mine_alone = [each for each in found if each.chunk == chunk]
        others = tuple([_sum(each.others, saved) + _sum(each.waiting, kept) for each in mine_alone])
        sizes.append(step_sizes(job, mine, own, ())._replace(held=others))
    wrapped = wrapped_kinds(job)
    roots = tuple([any(run.unit.kind not in wrapped for run in mine) for mine in runs])
    counts = tuple(map(len, runs))
    return schedule._replace(micro_batches=(), passes=found, chunk_runs=counts, chunk_roots=roots), sizes


def left_gradients(job: TrainingJob, rank: int, buffers: ModelBuffers) -> tuple[Always, ...]:
    """The gradients of received inputs, which ``.grad`` keeps after a backward of inputs alone. Since torch 2.15 the
    inputs themselves are freed.
    """
    fixed, each = split_passes(job.layout, rank)
    if job.casts_gradients or not fixed + each:
        return ()
    return (Always("communication_buffers", fixed * buffers.boundary(), each * buffers.boundary()),)


def _kept(unit: Unit) -> int:
    """What a micro-batch that waits for the backward of the weights holds beyond what was saved: gradients. What the
    loss has saved is gone: the graph is let go of from its end to the first matrix.
    """
    gone = dict(unit.fresh.saved_components).get("logits_and_loss", 0) if unit.kind == "head" else 0
    return unit.fresh.for_weights - gone


def _sum(counts: tuple[int, ...], sizes: list[int]) -> int:
    return sum(n * size for n, size in zip(counts, sizes, strict=True))


def _saved(runs: list[Run], buffers: ModelBuffers) -> int:
    """Bytes that a micro-batch in flight holds in a chunk's units, and in its stage's cache."""
    return buffers.per_micro_batch + buffers.border.output + sum(run.times * run.unit.fresh.saved for run in runs)
