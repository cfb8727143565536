"""Changes of an inference plan that may free memory: how it is stored, where it runs, and what can be served."""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.job.types import DTYPE_BYTES, InferenceJob
from memcheck.rules.gpu_abilities import compute_capability, lacks_bf16, lacks_fp8
from memcheck.rules.types import RuleContext
from memcheck.what_if.remedies.changes import EQUIVALENT, HARDWARE, METHOD, NUMERICS, OTHER, CandidateChange

BLACKWELL = 100
"""The compute capability from which matrix products take NVFP4."""
MOST_RANKS = 8
"""Tensor ranks of a served model: those of a usual node."""
LEAST_CONTEXT = 1024
"""Tokens below which no shorter contexts are suggested."""
BITS = {"fp8": 8, "int8": 8, "fp4": 4.5, "int4": 4}


def serving(context: RuleContext, job: InferenceJob) -> Iterator[CandidateChange]:
    """More tensor ranks; fewer sequences at a time; smaller weights, a smaller cache; shorter contexts.

    With fewer sequences at a time, every request is answered as before: it costs time alone. Shorter contexts refuse
    requests, and cost as much as another training does.
    """
    yield from _tensor(job)
    yield from _stored(context, job)
    for size in _less(job.batch_size, 1):
        title = (
            f"serve {size} {'sequence' if size == 1 else 'sequences'} at a time instead of {job.batch_size}: "
            "other requests wait"
        )
        slower = job.batch_size / size - 1
        yield CandidateChange("batch", title, {"inference.batch_size": size}, slowdown=slower)
    for tokens in _less(job.context_length, LEAST_CONTEXT):
        title = (
            f"serve contexts of up to {tokens} tokens instead of {job.context_length}: longer requests cannot be served"
        )
        yield CandidateChange("context", title, {"inference.context_length": tokens}, slowdown=0.0, cost=METHOD)


def _less(number: int, least: int) -> Iterator[int]:
    """Three quarters of it and half of it, and so on: the most first."""
    half = number
    while half > least:
        half //= 2
        for each in dict.fromkeys((half * 3 // 2, half)):
            if least <= each < number:
                yield each


def _stored(context: RuleContext, job: InferenceJob) -> Iterator[CandidateChange]:
    """Fewer bits of the weights and of the cache, as far as the GPU multiplies them or a kernel unpacks them."""
    gpu = context.resolved.gpu
    short, byte = "fp16" if lacks_bf16(gpu) else "bf16", "int8" if lacks_fp8(gpu) else "fp8"
    four = ("fp4", "int4") if (compute_capability(gpu) or 0) >= BLACKWELL else ("int4",)
    now = BITS.get(job.weights, 8 * DTYPE_BYTES.get(job.weights, 2))
    for dtype in (short, byte, *four):
        if BITS.get(dtype, 16) < now:
            title = f"quantise the weights to {dtype}" if dtype in BITS else f"keep the weights in {dtype}"
            yield CandidateChange(
                "weights", title, {"inference.weights": dtype}, slowdown=0.0, cost=NUMERICS, numerics=OTHER
            )
    for dtype in (short, byte):
        if DTYPE_BYTES[dtype] < DTYPE_BYTES[job.kv_cache]:
            title = f"keep the KV cache in {dtype}"
            yield CandidateChange(
                "cache", title, {"inference.kv_cache": dtype}, slowdown=0.0, cost=NUMERICS, numerics=OTHER
            )


def _tensor(job: InferenceJob) -> Iterator[CandidateChange]:
    layout = job.layout
    degree = layout.tensor * 2
    while degree <= MOST_RANKS:
        change: dict[str, object] = {"parallelism.tensor": degree}
        hardware = degree > layout.gpus_per_node
        if hardware:
            change["hardware.gpus_per_node"] = degree
        for name in ("expert", "expert_tensor"):  # experts that are placed over the tensor ranks stay so
            if 1 < getattr(layout, name) == layout.tensor:
                change[f"parallelism.{name}"] = degree
        title = f"split the model over {degree} GPUs (tensor parallelism)"
        yield CandidateChange(
            "tensor", title, change, slowdown=0.0, cost=HARDWARE if hardware else 0, numerics=EQUIVALENT
        )
        degree *= 2
