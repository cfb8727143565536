"""The passes of a rank's chunks, and what each chunk moves beside its units."""

from __future__ import annotations

from memcheck.accounts.unit import Part
from memcheck.frameworks.torch.interleaved import enough, passes
from memcheck.frameworks.torch.model_buffers import ModelBuffers
from memcheck.frameworks.torch.rank_units import Run, Units
from memcheck.frameworks.torch.step_options import StepOptions, StepSizes, step_sizes
from memcheck.job.types import TrainingJob


def chunked_step(
    job: TrainingJob, units: Units, how: StepOptions, held: tuple[Part, ...], rank: int
) -> tuple[StepOptions, list[StepSizes]]:
    """``how`` with the passes of the rank's chunks, and the sizes of each chunk. ``held``: what each one holds."""
    layout = job.layout
    found = passes(layout.pipeline, layout.virtual_stages, rank, enough(layout, job.run_micro_batches))
    runs = [units.runs(part) for part in held]
    buffers = [ModelBuffers(job, units.architecture, part, units.base) for part in held]
    saved = [_saved(mine, own) for mine, own in zip(runs, buffers, strict=True)]
    sizes = []
    for chunk, (mine, own) in enumerate(zip(runs, buffers, strict=True)):
        counts = [each.others for each in found if each.chunk == chunk]
        others = tuple([sum(n * size for n, size in zip(some, saved, strict=True)) for some in counts])
        sizes.append(step_sizes(job, mine, own, ())._replace(held=others))
    return how._replace(micro_batches=(), passes=found, chunk_runs=tuple(map(len, runs))), sizes


def _saved(runs: list[Run], buffers: ModelBuffers) -> int:
    """Bytes that a micro-batch in flight holds in a chunk's units, and in its stage's cache."""
    return buffers.per_micro_batch + buffers.border.output + sum(run.times * run.unit.fresh.saved for run in runs)
