"""The caching allocator's counters, phase by phase.

Measure a plan's step on the GPUs at hand: one process alone, or as many as the plan has ranks under ``torchrun``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from memcheck.accounts.estimate import Instant
from memcheck.errors import UsageError
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture
from memcheck.verify.build.model import base_of
from memcheck.verify.build.stage import build_stage
from memcheck.verify.build.step import DevicePlacement, StepParts, build_single
from memcheck.verify.build.wrap import local_elements, make_mesh
from memcheck.verify.compare import MEASURED, Observation, RankObservation, UntraceableError
from memcheck.verify.observe import Progress, versions


class Meter:
    """A watch that reads ``max_memory_allocated`` and ``max_memory_reserved`` whenever the phase changes."""

    def __init__(self, progress: Callable[[str, str], None]) -> None:
        self.phase = "init"
        self.allocated: dict[str, int] = {}
        self.reserved = 0
        self._progress = progress

    def begin_step(self) -> None:
        """Forget earlier steps."""
        self.phase = "init"
        self.allocated, self.reserved = {}, 0
        torch.cuda.reset_peak_memory_stats()

    def enter(self, phase: str) -> None:
        """Close the account of the phase before; allocations are counted when they are asked for, so nothing waits."""
        self.read()
        self.phase = phase
        self._progress(phase, "")

    def read(self) -> None:
        """The counters since they were last read."""
        peak = torch.cuda.max_memory_allocated()
        self.allocated[self.phase] = max(peak, self.allocated.get(self.phase, 0))
        self.reserved = max(self.reserved, torch.cuda.max_memory_reserved())
        torch.cuda.reset_peak_memory_stats()

    def instants(self) -> tuple[Instant, ...]:
        """The instants of the step, one per phase; counters know no components."""
        return tuple(
            Instant(name=name, operation="", allocated_bytes=n_bytes, components_bytes={})
            for name, n_bytes in self.allocated.items()
        )


STEPS = 3
"""The first makes optimizer states and loads kernels; the last is read."""


def measure(job: TrainingJob, architecture: Architecture, config: Mapping[str, Any], progress: Progress) -> Observation:
    """The counters of every rank. Only the first process gets them; the others' answer has no ranks.

    Raises:
        UntraceableError: torch sees no GPU.
        UsageError: more or fewer processes than the plan has ranks.
    """
    if not torch.cuda.is_available():
        raise UntraceableError(
            f"--measure needs a GPU, and torch {torch.__version__} sees none",
            "--trace needs none: it follows the same step on fake tensors",
        )
    ranks, world = job.layout.world_size, int(os.environ.get("WORLD_SIZE", "1"))
    if world != ranks:
        raise UsageError(
            f"the plan has {ranks} ranks, and {world} {'process runs' if world == 1 else 'processes run'}",
            f"torchrun --nproc-per-node {job.layout.gpus_per_node} --nnodes {job.layout.nodes} --no-python memcheck"
            " verify ... --measure, or measure a smaller plan with --set hardware.gpus_per_node=1",
        )
    rank = int(os.environ.get("RANK", "0"))
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    progress.begin(f"rank {rank} of {ranks}", architecture.num_layers)
    with _ranks(world), device:
        mesh = make_mesh(job, "cuda")
        stage = mesh["pipeline"].get_local_rank() if job.layout.pipeline > 1 else 0
        mine = _measure_rank(job, architecture, config, progress, mesh, stage, rank)
        found: list[Any] = [mine]
        if world > 1:
            found = [None] * world
            dist.all_gather_object(found, mine)
    progress.end()
    if rank:
        return Observation(MEASURED, versions(), ())
    return Observation(
        MEASURED, versions(), _worst(found), each=tuple(found), device=torch.cuda.get_device_name(device)
    )


def _worst(found: list[RankObservation]) -> tuple[RankObservation, ...]:
    """The highest rank of each stage of the pipeline."""
    stages: dict[int, RankObservation] = {}
    for seen in found:
        known = stages.get(seen.pipeline_rank)
        if known is None or seen.peak.allocated_bytes > known.peak.allocated_bytes:
            stages[seen.pipeline_rank] = seen
    return tuple(stages[stage] for stage in sorted(stages))


@contextmanager
def _ranks(world: int) -> Iterator[None]:
    if world == 1:
        yield
        return
    dist.init_process_group("nccl")
    try:
        yield
    finally:
        dist.destroy_process_group()


def _measure_rank(
    job: TrainingJob,
    architecture: Architecture,
    config: Mapping[str, Any],
    progress: Progress,
    mesh: Any,
    stage: int,
    rank: int,
) -> RankObservation:
    start = time.monotonic()
    meter = Meter(progress.at)
    progress.say("building the model")
    parts = _build(job, architecture, config, mesh, meter, stage)
    for number in range(1, STEPS + 1):
        progress.say(f"step {number} of {STEPS}")
        torch.cuda.synchronize()
        meter.begin_step()
        parts.step()
        meter.read()
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return RankObservation(
        pipeline_rank=stage,
        rank=rank,
        instants=meter.instants(),
        parameters=local_elements(list(parts.inner.parameters())),
        reserved_bytes=meter.reserved,
        device_bytes=total - free,
        seconds=round(time.monotonic() - start, 1),
    )


def _build(
    job: TrainingJob, architecture: Architecture, config: Mapping[str, Any], mesh: Any, meter: Meter, stage: int
) -> StepParts:
    # a whole model may have no room on one GPU: make it without storage, shard it, then give the shards storage
    sharded = job.layout.zero_stage == 3 and job.layout.data > 1 and job.lora is None
    place = DevicePlacement("cuda", "meta", _materialise) if sharded else DevicePlacement("cuda", "cuda", _fill)
    if job.layout.pipeline > 1:
        return build_stage(job, architecture, config, mesh, meter, stage, place)
    return build_single(job, architecture, config, mesh, meter, place)


def _materialise(model: nn.Module) -> None:
    """Storage for what was made on the meta device."""
    model.to_empty(device="cuda")
    base = base_of(model)
    if hasattr(base, "tie_weights"):
        base.tie_weights()
    for buffer in model.buffers():
        buffer.zero_()
    _fill(model)


def _fill(model: nn.Module) -> None:
    """Small numbers: memory does not depend on values, but routers spread tokens only over different ones."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.02)
