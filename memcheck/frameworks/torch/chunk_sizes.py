"""The passes of a rank's chunks, and what each chunk allocates in addition to its units."""

from __future__ import annotations

from memcheck.accounts.unit import Part, Unit
from memcheck.frameworks.torch.interleaved import enough, passes, split_passes
from memcheck.frameworks.torch.model_buffers import Always, ModelBuffers
from memcheck.frameworks.torch.rank_units import Run, Units
from memcheck.frameworks.torch.step_options import StepOptions, StepSizes, step_sizes
from memcheck.job.types import TrainingJob


def chunked_step(
    job: TrainingJob, units: Units, how: StepOptions, held: tuple[Part, ...], rank: int
) -> tuple[StepOptions, list[StepSizes]]:
    """``how`` with the passes of the rank's chunks, and the sizes of each chunk. ``held``: what each one holds."""
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
    return how._replace(micro_batches=(), passes=found, chunk_runs=tuple(map(len, runs))), sizes


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
