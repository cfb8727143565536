"""Changes of an inference plan that may free memory."""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.job.types import DTYPE_BYTES, InferenceJob
from memcheck.remedies.types import EQUIVALENT, HARDWARE, NUMERICS, OTHER, Candidate

SMALLER_WEIGHTS = ("fp8", "int4")


def serving(job: InferenceJob) -> Iterator[Candidate]:
    """Smaller batches, a smaller cache, smaller weights, more tensor ranks."""
    size = job.batch_size
    while size > 1:
        size //= 2
        title = f"serve {size} sequences at a time instead of {job.batch_size}"
        yield Candidate("batch", title, {"inference.batch_size": size}, job.batch_size / size - 1)
    if DTYPE_BYTES.get(job.kv_cache, 2) > 1:
        yield Candidate("cache", "keep the KV cache in fp8", {"inference.kv_cache": "fp8"}, 0.0, NUMERICS, OTHER)
    for dtype in SMALLER_WEIGHTS:
        if DTYPE_BYTES.get(dtype, 0.5) < DTYPE_BYTES.get(job.weights, 0.5):
            title = f"quantise the weights to {dtype}"
            yield Candidate("weights", title, {"inference.weights": dtype}, 0.0, NUMERICS, OTHER)
    layout = job.layout
    degree = layout.tensor * 2
    while degree <= 8:
        change: dict[str, object] = {"parallelism.tensor": degree}
        hardware = degree > layout.gpus_per_node
        if hardware:
            change["hardware.gpus_per_node"] = degree
        for name in ("expert", "expert_tensor"):  # experts that are placed over the tensor ranks stay so
            if 1 < getattr(layout, name) == layout.tensor:
                change[f"parallelism.{name}"] = degree
        title = f"split the model over {degree} GPUs (tensor parallelism)"
        yield Candidate("tensor", title, change, 0.0, HARDWARE if hardware else 0, EQUIVALENT)
        degree *= 2
