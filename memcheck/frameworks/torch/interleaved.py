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

from memcheck.accounts.program import Amount, Blocks, NamedCurve, Recorder
from memcheck.accounts.ranks import Always, Part, Run, Unit
from memcheck.frameworks.torch.data_parallel import (
    NO_GROUP,
    DataParallel,
    Group,
    MicroBatch,
    NamedRun,
    StepSizes,
    StepUnits,
    UnitGroups,
)
from memcheck.frameworks.torch.model_buffers import ModelBuffers
from memcheck.frameworks.torch.pipelining import stage_parts
from memcheck.frameworks.torch.rank_units import Units
from memcheck.frameworks.torch.step import HOLD, RELEASE, Schedule, Step, StepOptions, step_sizes, wrapped_kinds
from memcheck.job.types import Layout, TrainingJob
from memcheck.record import Record

GATHERED = 3
"""Chunks whose parameters are gathered at once: those that come next (``max_active_stages``)."""
ROUNDS = 3
"""Rounds beyond which others repeat the second."""


class ChunkPass(Record):
    """One micro-batch through one chunk, backward included."""

    chunk: int
    """Index of the chunk on its rank."""
    is_first: bool
    """The chunk's first micro-batch."""
    is_last: bool
    """The chunk's last micro-batch."""
    forward_cannot_peak: bool
    """Whether the forward of this pass cannot be the highest moment of the step."""
    others_in_flight: tuple[int, ...]
    """Other micro-batches in flight during this pass's backward, in each chunk."""
    also_gathered: tuple[int, ...]
    """Other chunks whose parameters are gathered then."""
    splits_backward: bool = False
    """Whether the backward first makes gradients of inputs alone: the graph stays alive until the backward of the
    weights.
    """
    awaiting_weight_backward: tuple[int, ...] = ()
    """Other micro-batches in flight whose backward of the weights is still to come, in each chunk."""


def chunk_parts(num_layers: int, layout: Layout, rank: int) -> tuple[Part, ...]:
    """Return the layers and ends of each chunk of a pipeline rank, in the order of the forward."""
    all_parts = stage_parts(num_layers, layout.pipeline * layout.virtual_stages, layout.fewer_layers)
    return tuple([all_parts[stage] for stage in stages_of(layout, rank)])


def stages_of(layout: Layout, rank: int) -> tuple[int, ...]:
    """Return the numbers of the stages that a pipeline rank holds, one for each of its chunks."""
    ranks = layout.pipeline
    if layout.pipeline_schedule == "dualpipe" and layout.virtual_stages > 1:
        return rank, 2 * ranks - 1 - rank
    return tuple(range(rank, ranks * layout.virtual_stages, ranks))


def enough_micro_batches(layout: Layout, micro_batches: int) -> int:
    """Return the number of micro-batches after which further ones repeat earlier ones, and cannot change the peak."""
    rounds = max(1, micro_batches // layout.pipeline)
    return micro_batches // rounds * min(rounds, ROUNDS)


def distinct_passes(layout: Layout, rank: int, micro_batches: int) -> tuple[ChunkPass, ...]:
    """List the backward passes of a pipeline rank that differ in memory, with their micro-batches in flight.

    For each model chunk these are its first backward, the one with most other micro-batches in flight, and its last.
    They come in the order in which the schedule runs them.
    """
    return _distinct_passes(layout.pipeline_schedule, layout.pipeline, layout.virtual_stages, rank, micro_batches)


@lru_cache(maxsize=512)
def _distinct_passes(schedule: str, ranks: int, chunks: int, rank: int, micro_batches: int) -> tuple[ChunkPass, ...]:
    """Return what :func:`distinct_passes` does, cached by the sizes that decide it.

    ``schedule``: the pipeline schedule's name. ``ranks``: of the pipeline. ``chunks``: of one rank. A pass is ``muted``
    if an earlier one has the same micro-batches in flight in its forward: then only its backward is recorded.
    """
    rounds = max(1, micro_batches // ranks)
    actions_of = ORDERS.get(schedule, _interleaved)
    all_passes = list(_all_passes(actions_of(ranks, chunks, rank, micro_batches), chunks, micro_batches))
    most_in_flight = sum(all_passes[0].others_in_flight) + 1
    all_in_flight = most_in_flight == micro_batches * chunks
    # of each chunk: the first pass, the middle ones with the most micro-batches in flight, and the last
    first_passes, middle_passes, last_passes = list[ChunkPass](), list[ChunkPass](), list[ChunkPass]()
    for chunk in reversed(range(chunks)):
        passes_of_chunk = [chunk_pass for chunk_pass in all_passes if chunk_pass.chunk == chunk]
        also_gathered = max((chunk_pass.also_gathered for chunk_pass in passes_of_chunk), key=len)
        first, middle, last = passes_of_chunk[0], passes_of_chunk[1:-1], passes_of_chunk[-1]
        is_last_chunk = chunk == chunks - 1
        first_is_muted = rounds > 1 or not is_last_chunk
        others_are_muted = all_in_flight or (rounds == 1 and not is_last_chunk)
        first_passes.append(first._replace(also_gathered=also_gathered, forward_cannot_peak=first_is_muted))
        if schedule in ORDERS:  # a micro-batch whose weight backward is pending holds more in layers, less in the head
            middle = list(
                {
                    (chunk_pass.others_in_flight, chunk_pass.awaiting_weight_backward): chunk_pass
                    for chunk_pass in middle
                }.values()
            )
        elif middle:
            middle = [max(middle, key=lambda chunk_pass: sum(chunk_pass.others_in_flight))]
        for chunk_pass in middle:
            middle_passes.append(chunk_pass._replace(also_gathered=also_gathered, forward_cannot_peak=others_are_muted))
        if not first.is_last:
            last_passes.append(last._replace(also_gathered=also_gathered, forward_cannot_peak=others_are_muted))
    passes = (*first_passes, *middle_passes, *last_passes)
    if rounds > 1:
        return passes
    return tuple(sorted(passes, key=lambda chunk_pass: -chunk_pass.chunk))


def input_backwards_ahead(layout: Layout, rank: int) -> tuple[int, int]:
    """Return how many backwards of inputs alone a pipeline rank runs: a fixed number, and the number per micro-batch.

    A zero-bubble schedule splits some backwards into inputs (I) and weights (W). Their number is linear in the
    micro-batches, so that two and three rounds of the schedule give both numbers. (0, 0): no backward is split.
    """
    order = ORDERS.get(layout.pipeline_schedule)
    if order is None:
        return 0, 0
    ranks = layout.pipeline

    def input_backwards(rounds: int) -> int:
        actions = order(ranks, layout.virtual_stages, rank, rounds * ranks)
        return sum(kind == "I" for kind, _ in actions)

    # a line through both points: input_backwards(rounds) = fixed + rounds * ranks * per_micro_batch
    in_two_rounds, in_three_rounds = input_backwards(2), input_backwards(3)
    per_micro_batch = (in_three_rounds - in_two_rounds) // ranks
    fixed = in_two_rounds - 2 * ranks * per_micro_batch
    return fixed, per_micro_batch


Action = tuple[str, int]
"""A forward, a backward, one of the inputs or of the weights alone (``F``, ``B``, ``I``, ``W``), and the chunk."""


def _all_passes(actions: list[Action], chunks: int, micro_batches: int) -> Iterator[ChunkPass]:
    """Yield every backward pass of a pipeline rank in order, with the micro-batches in flight of each chunk.

    ``actions``: (kind, chunk) in the schedule's order: F forward, B backward, I backward of the inputs, W backward of
    the weights. ``chunks``: of the rank. ``micro_batches``: per step.
    """
    # by chunk: forwards without a backward, backwards that have run, and backwards of the weights that have not
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
        in_flight_of_others = [count - (index == chunk) for index, count in enumerate(in_flight)]
        following = dict.fromkeys(next_chunk for _, next_chunk in actions[number:])
        also_gathered = tuple([next_chunk for next_chunk in following if next_chunk != chunk][: GATHERED - 1])
        yield ChunkPass(
            chunk=chunk,
            is_first=done[chunk] == 1,
            is_last=done[chunk] == micro_batches,
            forward_cannot_peak=False,
            others_in_flight=tuple(in_flight_of_others),
            also_gathered=also_gathered,
            splits_backward=kind == "I",
            awaiting_weight_backward=tuple(waiting),
        )
        in_flight[chunk] -= kind == "B"
        waiting[chunk] += kind == "I"


def _interleaved(ranks: int, chunks: int, rank: int, micro_batches: int) -> list[Action]:
    """Return the forwards (F) and backwards (B) of interleaved 1F1B in the order in which a pipeline rank runs them.

    ``chunks``: model chunks per rank. After the warm-up forwards, forwards and backwards alternate
    (torch/distributed/pipelining/schedules.py, _get_1f1b_rank_ops).
    """
    round_size = micro_batches // max(1, micro_batches // ranks)
    total_passes = micro_batches * chunks
    warm_up = min((chunks - 1) * round_size + 2 * (ranks - 1 - rank), total_passes)
    actions = [("F", step // round_size % chunks) for step in range(warm_up)]
    for step in range(total_passes):
        if warm_up + step < total_passes:
            actions.append(("F", (warm_up + step) // round_size % chunks))
        actions.append(("B", chunks - 1 - step // round_size % chunks))
    return actions


def _zero_bubble(ranks: int, chunks: int, rank: int, micro_batches: int) -> list[Action]:
    """Return the actions of ScheduleInterleavedZeroBubble in the order in which a pipeline rank runs them.

    F: forward, I: backward of the inputs, W: backward of the weights, which runs ``rank`` steps after it. ``chunks``:
    model chunks per rank.
    """
    round_size = micro_batches // max(1, micro_batches // ranks)
    total_passes = micro_batches * chunks
    warm_up = min((chunks - 1) * round_size + ranks - 1 - rank, total_passes)
    backward_chunks = [chunks - 1 - step // round_size % chunks for step in range(total_passes)]
    actions = [("F", step // round_size % chunks) for step in range(warm_up)]
    for step in range(total_passes):
        if warm_up + step < total_passes:
            actions.append(("F", (warm_up + step) // round_size % chunks))
        actions.append(("I", backward_chunks[step]))
        if step >= rank:
            actions.append(("W", backward_chunks[step - rank]))
    actions += [("W", chunk) for chunk in backward_chunks[max(0, total_passes - rank) :]]
    return _unsplit_first_stage(actions, rank)


def _dualpipe(ranks: int, chunks: int, rank: int, micro_batches: int) -> list[Action]:
    """Return the actions of ScheduleDualPipeV in the order in which a pipeline rank runs them.

    Chunk 0 is a stage of the model's first half, chunk 1 its mirror image in the second half. The eight steps below are
    those of _calculate_single_rank_operations (torch/distributed/pipelining/schedules.py).
    """
    later_ranks = ranks - rank - 1
    # steps 1 to 4: forwards of chunk 0, forwards of both, backwards of chunk 1, forwards and backwards of both
    actions: list[Action] = [("F", 0)] * (2 * later_ranks)
    actions += [("F", 0), ("F", 1)] * (rank + 1)
    actions += [("I", 1), ("W", 1), ("F", 1)] * later_ranks
    actions += [("F", 0), ("B", 1), ("F", 1), ("B", 0)] * max(0, micro_batches - 2 * ranks + rank + 1)
    # step 5: the last forwards of chunk 1
    actions += [("B", 1), ("F", 1), ("B", 0)] * later_ranks
    # step 6: backwards of both; from half of them on the backwards of the weights are put off
    pending_weights: list[int] = []  # the chunk of each
    half = (rank + 1) // 2
    for step in range(rank + 1):
        for chunk in (1, 0):
            if step > half or (step == half and (rank % 2 == 1 or chunk == 0)):
                actions.append(("I", chunk))
                pending_weights.append(chunk)
            else:
                actions.append(("B", chunk))
    # step 7: the remaining backwards of chunk 0, each after a backward of weights; step 8: the remaining weights
    for _ in range(later_ranks):
        if pending_weights:
            actions.append(("W", pending_weights.pop(0)))
        actions.append(("I", 0))
        pending_weights.append(0)
    actions += [("W", chunk) for chunk in pending_weights]
    return _unsplit_first_stage(actions, rank)


def _unsplit_first_stage(actions: list[Action], rank: int) -> list[Action]:
    """Return the actions with an unsplit backward of the first stage, whose inputs need no gradient.

    It runs where the backward of its weights would (stage.py, backward_weight_one_chunk). Other ranks are unchanged.
    """
    if rank > 0:
        return actions
    return [("B", 0) if action == ("W", 0) else action for action in actions if action != ("I", 0)]


ORDERS: dict[str, Callable[[int, int, int, int], list[Action]]] = {"zero-bubble": _zero_bubble, "dualpipe": _dualpipe}
"""Schedules that split the backward."""


class ChunkStep(Step):
    """Records the passes of one chunk, whose stage is a root of FSDP2's by itself."""

    def __init__(self, options: StepOptions, step_units: StepUnits, recorder: Recorder, parallel: DataParallel) -> None:
        """Set the state before a step: no split backward runs, and no gradients wait for FSDP2's hooks."""
        super().__init__(options, step_units, recorder, parallel)
        self.split = False
        """The running backward computes the inputs' gradients first, and the weights' later."""
        self.unreduced = False
        """Gradients of a split backward are live that the hooks have not reduced."""

    def run_pass(self, chunk_pass: ChunkPass, other_bytes: int) -> None:
        """Record one micro-batch's pass through the chunk, whose backward is split or whole.

        FSDP2's hooks run on every gradient that exists after it. ``other_bytes``: the index of the bytes that other
        micro-batches hold.
        """
        self.split = chunk_pass.splits_backward
        if self.unreduced and not chunk_pass.splits_backward:
            self._release_unreduced()
        micro_batch = MicroBatch(
            chunk_pass.is_first, chunk_pass.is_last, min(sum(chunk_pass.others_in_flight), self.exchange.sends)
        )
        self.run_micro_batch(micro_batch, other_bytes, muted=chunk_pass.forward_cannot_peak)

    def after_unit_backward(self, i: int, curve: NamedCurve) -> None:
        """Keep the graph, and the gradients from which those of the weights are computed, after a backward of
        inputs.
        """
        if self.split:
            self._hold_graph_of(curve, HOLD)

    def end_backward(self, micro_batch: MicroBatch) -> None:
        """Record the backward of the weights after a split backward of the inputs, and release the graph.

        It runs outside FSDP2's hooks. So its gradients stay unreduced, until the last micro-batch reduces all of them.
        """
        if not self.split:
            return
        self.recorder.mark("backward", "gradients of the weights")
        for unit in self.units:
            self._hold_graph_of(self.curve(unit, micro_batch.is_first), RELEASE)
        if not self.parallel.hooks_gradients:
            return
        if self.unreduced and micro_batch.is_last:
            self._release_unreduced()
        elif not self.unreduced and not micro_batch.is_last:
            self._hold_unreduced()

    def _hold_graph_of(self, curve: NamedCurve, sign: int) -> None:
        """Hold or release (``sign``) what a unit's backward of the weights needs: its graph, and output gradients."""
        self.recorder.hold_components(curve.saved_bytes, sign)
        self.recorder.hold("temporaries", curve.weight_backward_bytes, sign)

    def _hold_unreduced(self) -> None:
        """Hold the gradients of weights that FSDP2's hooks have not seen, until the next backward of inputs."""
        self.unreduced = True
        self.recorder.hold_amount("gradients", self._unreduced_gradients())

    def _release_unreduced(self) -> None:
        """Release the gradients that :meth:`_hold_unreduced` holds: the hooks reduce them now."""
        self.unreduced = False
        self.recorder.release_amount("gradients", self._unreduced_gradients())

    def _unreduced_gradients(self) -> Amount:
        """Return the sizes of the gradients of weights that FSDP2's hooks have not seen, in their own dtype.

        On the last stage they are the head's alone: the layers' backwards of weights follow all backwards of their
        round.
        """
        first_unit = len(self.units) - 1 if self.units[-1].kind == "head" else 0
        groups = [(i, end - i) for i, end in self.layer_groups if i >= first_unit]
        return tuple([Blocks(self.units[i].first_curve.gradient_bytes, times) for i, times in groups])


def record_chunks(
    options: StepOptions,
    runs: Sequence[NamedRun],
    groups: Sequence[UnitGroups],
    root: Group,
    sizes: Sequence[StepSizes],
    recorder: Recorder,
    first_strategy_size: int,
) -> None:
    """Record one step of a pipeline rank with several model chunks: every pass of ``schedule.passes`` in its order.

    ``runs``, ``groups``: units of all chunks, and their FSDP groups. ``root``: the group of embedding, or of norm and
    head. ``sizes``: one entry per chunk. ``first_strategy_size``: the index of the first size of the data-parallel
    strategy's buffers. ``recorder``: takes the record.
    """
    steps: list[ChunkStep] = []
    start = 0
    schedule = options.schedule
    for count, has_root_units, chunk_sizes in zip(schedule.chunk_runs, schedule.chunk_roots, sizes, strict=True):
        end = start + count
        step_units = StepUnits(runs[start:end], groups[start:end], root if has_root_units else NO_GROUP, chunk_sizes)
        steps.append(
            ChunkStep(options, step_units, recorder, options.strategy.hooks(recorder, step_units, first_strategy_size))
        )
        start = end
    for step in steps:
        step.hold_layer_states()
    recorder.mark("init", "states at rest")
    for step in steps:
        step.parallel.begin_step()
    held_by_others = [list(chunk_sizes.held_by_others) for chunk_sizes in sizes]
    for chunk_pass in schedule.chunk_passes:
        chunk_step = steps[chunk_pass.chunk]
        if chunk_pass.is_first and chunk_step.units[-1].kind == "head":
            chunk_step.hold_previous_graph(1)
        for gathered_chunk in chunk_pass.also_gathered:
            steps[gathered_chunk].parallel.hold_gathered(1)
        chunk_step.run_pass(chunk_pass, held_by_others[chunk_pass.chunk].pop(0))
        for gathered_chunk in chunk_pass.also_gathered:
            steps[gathered_chunk].parallel.hold_gathered(-1)
    recorder.mark("optimizer", "optimizer step")


def chunked_step(
    job: TrainingJob, units: Units, schedule: Schedule, chunks: tuple[Part, ...], rank: int
) -> tuple[Schedule, list[StepSizes]]:
    """Return the schedule with the passes of a rank's model chunks, and the sizes in bytes of each chunk.

    ``units``: builds the units of a part of the model. ``chunks``: the layers and ends that each chunk holds.
    """
    layout = job.layout
    passes = distinct_passes(layout, rank, enough_micro_batches(layout, job.run_micro_batches))
    runs = [units.runs(chunk_part) for chunk_part in chunks]
    buffers = [ModelBuffers(job, units.architecture, chunk_part, units.base) for chunk_part in chunks]
    saved: list[int] = []  # bytes that a micro-batch in flight keeps in each chunk
    extra_until_weight_backward: list[int] = []  # and one whose backward of the weights has not run
    for chunk_runs, chunk_buffers in zip(runs, buffers, strict=True):
        saved.append(_saved_by_micro_batch(chunk_runs, chunk_buffers))
        extra_until_weight_backward.append(
            sum(run.times * _extra_until_weight_backward(run.unit) for run in chunk_runs)
        )
    sizes = []
    for chunk, (chunk_runs, chunk_buffers) in enumerate(zip(runs, buffers, strict=True)):
        held_by_others = []
        for chunk_pass in passes:
            if chunk_pass.chunk == chunk:
                in_flight_bytes = _weighted_sum(chunk_pass.others_in_flight, saved)
                pending_bytes = _weighted_sum(chunk_pass.awaiting_weight_backward, extra_until_weight_backward)
                held_by_others.append(in_flight_bytes + pending_bytes)
        sizes.append(step_sizes(job, chunk_runs, chunk_buffers, ())._replace(held_by_others=tuple(held_by_others)))
    wrapped = wrapped_kinds(job)
    roots = tuple([any(run.unit.kind not in wrapped for run in chunk_runs) for chunk_runs in runs])
    counts = tuple(map(len, runs))
    return schedule._replace(micro_batches=(), chunk_passes=passes, chunk_runs=counts, chunk_roots=roots), sizes


def kept_input_gradients(job: TrainingJob, rank: int, buffers: ModelBuffers) -> tuple[Always, ...]:
    """Return the gradients of received inputs, which ``.grad`` keeps after a backward of inputs alone.

    Since torch 2.15 the inputs themselves are freed, with their gradients.
    """
    fixed, per_micro_batch = input_backwards_ahead(job.layout, rank)
    if job.casts_gradients or not fixed + per_micro_batch:
        return ()
    return (Always("communication_buffers", fixed * buffers.boundary(), per_micro_batch * buffers.boundary()),)


def _extra_until_weight_backward(unit: Unit) -> int:
    """Return the bytes that a micro-batch holds beyond its saved tensors while its backward of the weights is pending.

    These are the gradients of the matrix products' outputs. The loss's saved tensors are subtracted: the graph is freed
    from its end to the first matrix.
    """
    freed_by_loss = dict(unit.first_curve.saved_components).get("logits_and_loss", 0) if unit.kind == "head" else 0
    return unit.first_curve.weight_backward_bytes - freed_by_loss


def _weighted_sum(counts: tuple[int, ...], sizes: list[int]) -> int:
    return sum(n * size for n, size in zip(counts, sizes, strict=True))


def _saved_by_micro_batch(runs: list[Run], buffers: ModelBuffers) -> int:
    """Return the bytes that one micro-batch in flight holds in a chunk: saved tensors, and the stage's cached
    output.
    """
    return (
        buffers.per_micro_batch
        + buffers.exchange.output
        + sum(run.times * run.unit.first_curve.saved_bytes for run in runs)
    )
