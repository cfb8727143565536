"""Trace one step of a plan, rank by rank of its pipeline."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch

from memcheck.accounts.estimate import Instant
from memcheck.frameworks.torch.ddp import fullest_share, redundancy_free
from memcheck.frameworks.torch.flat_parameters import fullest_row
from memcheck.frameworks.torch.fsdp import flattens, mixes_adapters, outside_dtype
from memcheck.frameworks.torch.whole_model import model_tensors
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture, Attention, Mixer
from memcheck.verify.build.pictures import sees
from memcheck.verify.build.place import DevicePlacement
from memcheck.verify.build.step import StepParts, micro_batches
from memcheck.verify.build.wrap import local_elements, make_mesh
from memcheck.verify.extra import versions
from memcheck.verify.interrupt import Interrupts
from memcheck.verify.progress import Progress
from memcheck.verify.replay.sequence import Sequence
from memcheck.verify.trace.buckets import settle
from memcheck.verify.trace.exchange import exchanges
from memcheck.verify.trace.flat import flat_parameters, recorded_streams
from memcheck.verify.trace.picture import Picture, resting_tensors, take
from memcheck.verify.trace.tracer import Tracer
from memcheck.verify.trace.world import fake_ranks, fake_tensors
from memcheck.verify.types import TRACED, Observation, RankObservation


def trace(
    job: TrainingJob,
    architecture: Architecture,
    config: Mapping[str, Any],
    progress: Progress,
    stages: tuple[int, ...] = (),
) -> Observation:
    """Every pipeline rank (or those of ``stages``), each by its rank 0 of the other dimensions."""
    chosen = stages or tuple(range(job.layout.pipeline))
    per_stage = job.layout.world_size // job.layout.pipeline
    fullest = _fullest(job, architecture)
    found = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # nothing is computed
    try:
        for stage in chosen:
            progress.begin(f"rank {stage * per_stage} of {job.layout.world_size}", architecture.num_layers)
            found.append(_trace_rank(job, architecture, config, progress, stage, stage * per_stage + fullest))
    finally:
        torch.set_num_threads(threads)
        progress.end()
    return Observation(mode=TRACED, versions=versions(), ranks=tuple(found), notes=_notes(job))


def _adds_wholes(job: TrainingJob, architecture: Architecture) -> bool:
    """Whether gradients meet that are most of the peak: of a scan in a Python loop, each token's or chunk's of which is
    as large as all of them together; of scores that a softmax and a logsumexp read; of several streams, of which each
    is picked.
    """
    mixers = [block.mixer for block, _ in architecture.blocks]
    scans = any(isinstance(m, Mixer) and m.kind in ("mamba1", "mamba1-heads", "kimi-delta") for m in mixers)
    loops = scans and job.ssm_kernels == "fallback"
    return loops or architecture.streams > 1 or any(isinstance(m, Attention) and m.scaled_output for m in mixers)


def _notes(job: TrainingJob) -> tuple[str, ...]:
    notes = []
    run = micro_batches(job)
    if job.layout.pipeline == 1 and run < job.gradient_accumulation_steps:
        notes.append(
            f"{run} of {job.gradient_accumulation_steps} micro-batches were run: the others repeat the second one"
        )
    if job.recipe.recipe.startswith("fp16"):
        notes.append("without a gradient scaler, whose tensors are scalars")
    return tuple(notes)


def _fullest(job: TrainingJob, architecture: Architecture) -> int:
    """The rank to look at: FSDP2's shards are largest on rank 0; ZeroRedundancyOptimizer's states may be elsewhere, and
    of FSDP1's flat tensor, in which a frozen tower comes first, the last rank has what is trained. Of one that mixes
    adapters and frozen weights, some rank holds most of the adapters.
    """
    if architecture.vision is not None and flattens(job) and job.freeze and "language" not in job.freeze:
        return job.layout.shard_group - 1
    if mixes_adapters(job):
        return fullest_row(job)
    if not redundancy_free(job):
        return 0
    return fullest_share(job, (t for tensors in model_tensors(job, architecture) for t in tensors))[0]


def _trace_rank(
    job: TrainingJob,
    architecture: Architecture,
    config: Mapping[str, Any],
    progress: Progress,
    stage: int,
    rank: int,
) -> RankObservation:
    start = time.monotonic()
    with ExitStack() as stack:
        interrupts = stack.enter_context(Interrupts())
        stack.enter_context(fake_ranks(job.layout.world_size, rank, alone=job.framework.runs_itself))
        stack.enter_context(exchanges(job.layout.gpus_per_node))
        ranks = stack.enter_context(_meshes(job, architecture))
        with (
            fake_tensors(masks=job.masks, values=sees(job, architecture)),
            flat_parameters() if flattens(job) else nullcontext(),
        ):
            in_place = outside_dtype(job) is not None or _adds_wholes(job, architecture)
            tracer = Tracer(interrupts.seen, progress.at, in_place=in_place)
            asked = tracer.account.sequence = Sequence(torch.cpu.current_stream)  # FSDP2 switches these as CUDA's
            with recorded_streams(tracer.account) if flattens(job) else nullcontext():
                progress.say("building the model")
                parts = _build(job, architecture, config, ranks, tracer, stage)
                tracer.follow(parts.inner)
                tracer.hold([resting_tensors(parts.inner), parts.inputs])
                instants, largest = _steps(tracer, parts, progress)
                parameters = local_elements(list(parts.inner.parameters()))
    return RankObservation(
        pipeline_rank=stage,
        rank=rank,
        instants=instants,
        parameters=parameters,
        largest=largest,
        operators=tracer.account.operators,
        seconds=round(time.monotonic() - start, 1),
        events=tuple(asked.events),
        steps=tuple(asked.steps),
        phases=tuple(asked.phases),
    )


@contextmanager
def _meshes(job: TrainingJob, architecture: Architecture) -> Iterator[Any]:
    """The job's ranks, as plain PyTorch or torchtitan groups them."""
    if not job.framework.runs_itself:
        yield make_mesh(job, "cpu")
        return
    from memcheck.verify.build.torchtitan import configure
    from memcheck.verify.trace.torchtitan import on_the_cpu

    with on_the_cpu():
        yield configure(job, architecture)


def _build(
    job: TrainingJob,
    architecture: Architecture,
    config: Mapping[str, Any],
    ranks: Any,
    tracer: Tracer,
    stage: int,
) -> StepParts:
    if job.framework.runs_itself:
        from memcheck.verify.build.torchtitan import build_torchtitan

        return build_torchtitan(job, architecture, ranks, tracer)
    if job.layout.pipeline > 1:
        from memcheck.verify.build.stage import build_stage

        return build_stage(job, architecture, config, ranks, tracer, stage)
    from memcheck.verify.build.single import build_single

    place = DevicePlacement(ready=lambda model: settle(model, tracer.account))
    return build_single(job, architecture, config, ranks, tracer, place)


def _steps(tracer: Tracer, parts: StepParts, progress: Progress) -> tuple[tuple[Instant, ...], Any]:
    """Step 1 makes optimizer states, step 2 finds the highest points, step 3 looks at what lives there."""
    account = tracer.account
    collect = gc.isenabled()
    gc.collect()
    gc.disable()  # reference counts free what a step drops, as in a real run between collections
    try:
        with tracer:
            progress.say("step 1 of 3")
            parts.step()
            gc.collect()
            progress.say("step 2 of 3")
            account.begin_step()
            tracer.phase = "init"
            tracer.mark("states at rest")
            parts.step()
            gc.collect()
            tops = dict(account.tops)
            progress.say("step 3 of 3")
            pictures: dict[str, Picture] = {}
            account.begin_step()
            pictures["init"] = take(account, parts)
            tracer.targets = {(top.operator, top.bytes): phase for phase, top in tops.items()}

            def look(phase: str) -> None:
                pictures[phase] = take(account, parts)

            tracer.look = look
            parts.step()
            tracer.look = None
    finally:
        if collect:
            gc.enable()
    instants = tuple(
        Instant(
            name=phase,
            operation=top.words,
            allocated_bytes=top.bytes,
            components_bytes=pictures[phase].components if phase in pictures else {},
        )
        for phase, top in tops.items()
    )
    peak = max(instants, key=lambda i: i.allocated_bytes)
    return instants, pictures[peak.name].largest if peak.name in pictures else ()
