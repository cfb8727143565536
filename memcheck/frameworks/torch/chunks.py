"""The step of a rank that holds several stages of a pipeline, chunk by chunk.

Source of a backward of inputs alone, followed by that of the weights: torch 2.13 distributed/pipelining/_backward.py
(stage_backward_input, stage_backward_weight).
"""

from __future__ import annotations

from collections.abc import Sequence

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
from memcheck.frameworks.torch.interleaved import ChunkPass, enough, passes, split_passes
from memcheck.frameworks.torch.model_buffers import ModelBuffers
from memcheck.frameworks.torch.rank_units import Run, Units
from memcheck.frameworks.torch.step import Step
from memcheck.frameworks.torch.step_options import Schedule, StepOptions, step_sizes, wrapped_kinds
from memcheck.job.types import TrainingJob


class ChunkStep(Step):
    """Records the passes of one chunk, whose stage is a root of FSDP2's by itself."""

    def __init__(self, options: StepOptions, row: StepUnits, recorder: Recorder, parallel: DataParallel) -> None:
        super().__init__(options, row, recorder, parallel)
        self.split = self.unreduced = False

    def run_pass(self, each: ChunkPass, held: int) -> None:
        """A micro-batch's pass, whose backward is split or whole. FSDP2's hooks run on every gradient that exists after
        it. ``held``: what other micro-batches hold.
        """
        self.split = each.split
        if self.unreduced and not each.split:
            self._keep_unreduced(-1)
        micro_batch = MicroBatch(each.first, each.last, min(sum(each.others), self.border.sends))
        self.walk(micro_batch, held, muted=each.muted)

    def retain(self, i: int, curve: NamedCurve) -> None:
        """The graph stays, with the gradients from which those of the weights are computed."""
        if self.split:
            self._hold_graph_of(curve, 1)

    def end_backward(self, each: MicroBatch) -> None:
        """The backward of the weights. The gradients of all micro-batches are reduced after the last one's."""
        if not self.split:
            return
        self.recorder.mark("backward", "gradients of the weights")
        for unit in self.units:
            self._hold_graph_of(self.curve(unit, each.first), -1)
        if self.parallel.hooks_gradients and self.unreduced == each.last:
            self._keep_unreduced(-1 if each.last else 1)

    def _hold_graph_of(self, curve: NamedCurve, sign: int) -> None:
        self.recorder.hold_bundle(curve.saved, sign)
        self.recorder.hold("temporaries", curve.for_weights, sign)

    def _keep_unreduced(self, sign: int) -> None:
        """Gradients of weights that FSDP2's hooks have not seen, in the dtype in which they wait: the next
        micro-batch's backward of inputs adds to them. Those of the last stage's layers follow all of its round's.
        """
        self.unreduced = sign > 0
        first = len(self.units) - 1 if self.units[-1].kind == "head" else 0
        each = [(self.units[i].fresh.gradients, end - i) for i, end in self.stretches if i >= first]
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
        row = StepUnits(runs[start:end], groups[start:end], root if rooted else NO_GROUP, beyond)
        steps.append(ChunkStep(options, row, recorder, options.parallel.hooks(recorder, row, own_sizes)))
        start = end
    for step in steps:
        step.leave_all()
    recorder.mark("init", "states at rest")
    for step in steps:
        step.parallel.begin_step()
    left = [list(beyond.held) for beyond in sizes]
    for each in schedule.passes:
        own = steps[each.chunk]
        if each.first and own.units[-1].kind == "head":
            own.hold_graph(1)
        for other in each.beside:
            steps[other].parallel.hold_gathered(1)
        own.run_pass(each, left[each.chunk].pop(0))
        for other in each.beside:
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
