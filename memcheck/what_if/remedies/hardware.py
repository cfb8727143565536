"""More nodes, or GPUs with more memory."""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.catalog.gpus import GpuSize, gpu_sizes
from memcheck.catalog.types import Gpu
from memcheck.job.types import TrainingJob
from memcheck.rules.types import RuleContext
from memcheck.rules.words import gib
from memcheck.what_if.remedies.types import EQUIVALENT, HARDWARE, CandidateChange

MOST_GPUS = 3
"""Larger GPUs that are tried, smallest first."""
ABOUT = 0.98
"""The need depends little on the GPU (context, workspaces): what is clearly too small is not tried."""


def larger_gpus(context: RuleContext) -> Iterator[CandidateChange]:
    """GPUs of the same maker with more memory, one of each size, in nodes that are at least as large."""
    now, estimate = context.resolved.gpu, context.estimate
    least = now.memory_bytes * 1.05
    if estimate is not None:
        least = max(least, ABOUT * estimate.needed_bytes / min(context.fail_above, 1.0))
    seen: set[int] = set()
    for gpu in sorted(gpu_sizes(), key=lambda g: (g.memory_bytes, -(g.bf16_tflops or 0))):
        size = round(gpu.memory_bytes / 2**30 / 4)
        if gpu.memory_bytes < least or size in seen or not _same_kind(gpu, now):
            continue
        if (gpu.gpus_per_node or 1) < min(context.layout.gpus_per_node, now.gpus_per_node or 8):
            continue
        seen.add(size)
        title = f"use {gpu.name} with {gib(gpu.memory_bytes)} each"
        slower = _relative_time(gpu, now) if context.training is None else 0.0
        yield CandidateChange(
            "gpu", title, {"hardware.gpu": gpu.name}, slowdown=slower, cost=HARDWARE, numerics=EQUIVALENT
        )
        if len(seen) == MOST_GPUS:
            return


def _same_kind(gpu: GpuSize, now: Gpu) -> bool:
    """Whether both GPUs are of one maker. A GPU known only by the plan's figures counts as one of NVIDIA."""
    return (gpu.arch or "")[:3] == (now.arch or "sm_")[:3]


def _relative_time(gpu: GpuSize, now: Gpu) -> float:
    """How much longer a step takes by the rates of bf16 arithmetic; negative = faster."""
    if not gpu.bf16_tflops or not now.bf16_tflops:
        return 0.0
    return round(now.bf16_tflops / gpu.bf16_tflops - 1, 3)


def more_nodes(context: RuleContext, job: TrainingJob) -> Iterator[CandidateChange]:
    """Twice and four times the nodes, when a ZeRO stage makes the shards smaller; the global batch stays."""
    layout = job.layout
    if not layout.zero_stage or layout.shard_group < layout.data * layout.context:
        return
    for factor in (2, 4):
        title = f"shard over {layout.nodes * factor} nodes instead of {layout.nodes}"
        yield CandidateChange(
            "nodes", title, {"hardware.nodes": layout.nodes * factor}, slowdown=0.0, cost=HARDWARE, numerics=EQUIVALENT
        )
