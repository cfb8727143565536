"""Makes a plan's dossier, with the engine that judged the plan."""

from __future__ import annotations

import os

from memcheck.catalog.gpus import find_gpu
from memcheck.dossier.types import Dossier, OnGpu, RankDevice
from memcheck.errors import MemcheckError
from memcheck.job.resolve import resolve
from memcheck.memory.estimate import estimate
from memcheck.memory.interval import interval_basis
from memcheck.memory.overhead import slack
from memcheck.memory.types import Estimate
from memcheck.remedies.change import apply
from memcheck.rules.run import check_layout, make_context
from memcheck.rules.types import Context

DATA_CENTRE = (
    "a100-40gb",
    "a100-80gb",
    "l40s",
    "h100-80gb",
    "h100-nvl-94gb",
    "h200",
    "b200",
    "b300",
    "mi300x",
    "mi325x",
    "mi355x",
)
"""What clouds and clusters rent out today, oldest first, NVIDIA before AMD."""


def dossier(context: Context, answer: Estimate) -> Dossier:
    """Everything beyond the estimate that the plan itself decides."""
    basis, cases = interval_basis(context.job)
    gpu = context.resolved.gpu
    own = OnGpu(gpu.name, gpu.memory_bytes, answer.device_bytes, answer.interval_bytes[1], gpu.bf16_tflops)
    return Dossier(rank_devices(context, answer), (own, *on_gpus(context)), basis, cases)


def rank_devices(context: Context, answer: Estimate) -> tuple[RankDevice, ...]:
    """Device bytes of every pipeline rank; on the worst one they are those of the estimate."""
    job, gpu, overhead = context.job, context.resolved.gpu, context.resolved.overhead
    found = []
    for rank in answer.ranks:
        extra = slack(job, gpu, overhead, rank.peak.allocated_bytes)
        components = dict(rank.peak.components_bytes)
        for name, n_bytes in extra._asdict().items():
            components[name] = components.get(name, 0) + n_bytes
        found.append(RankDevice(rank.pipeline_rank, rank.peak.name, {k: v for k, v in components.items() if v}))
    return tuple(found)


def on_gpus(context: Context) -> tuple[OnGpu, ...]:
    """The plan on each of the data centre's GPUs but its own."""
    names = [name for name in DATA_CENTRE if name != context.resolved.gpu.name]
    own = frozenset(finding.code for finding in check_layout(context)[0])
    return tuple(on_gpu(context, name, own) for name in names)


def on_gpu(context: Context, name: str, own: frozenset[str]) -> OnGpu:
    """The plan with another GPU, judged by the layout rules and priced by the engine.

    ``own``: codes of findings that the plan has on its own GPU, too.
    """
    gpu = find_gpu(name)
    there = OnGpu(name, gpu.memory_bytes, bf16_tflops=gpu.bf16_tflops)
    changed = apply(context.document, {"hardware.gpu": name})
    if changed is None:
        return there._replace(refused="the plan is not valid with it")
    document, plan = changed
    plan = plan._replace(policy=context.plan.policy)
    try:
        resolved = resolve(plan, base_dir=os.path.dirname(document.path))
        new = make_context(plan, document, resolved, fail_above=context.fail_above, warn_above=context.warn_above)
        findings, possible = check_layout(new)
        broken = next((f for f in findings if f.severity == "error" and f.code not in own), None)
        if broken is not None or not possible:
            return there._replace(refused=f"{broken.code}: {broken.message}" if broken else "the job could not start")
        answer = estimate(resolved.job, gpu, resolved.overhead, every_rank=False)
    except MemcheckError as error:
        return there._replace(refused=error.message)
    return there._replace(device_bytes=answer.device_bytes, interval_high_bytes=answer.interval_bytes[1])
