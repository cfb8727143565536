"""Changes of an inference plan that may free memory."""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.job.types import DTYPE_BYTES, InferenceJob
from memcheck.remedies import slowdown as cost
from memcheck.remedies.change import written
from memcheck.remedies.types import HARDWARE, NUMERICS, Candidate
from memcheck.rules.types import Context

SMALLER_WEIGHTS = ("fp8", "int4")


def serving(context: Context, job: InferenceJob) -> Iterator[Candidate]:
    """Smaller batches, a smaller cache, smaller weights, more tensor ranks."""
    size = job.batch_size
    while size > 1:
        size //= 2
        title = f"serve {size} sequences at a time instead of {job.batch_size}"
        yield Candidate("batch", title, {"inference.batch_size": size}, job.batch_size / size - 1)
    if DTYPE_BYTES.get(job.kv_cache, 2) > 1:
        yield Candidate("cache", "keep the KV cache in fp8", {"inference.kv_cache": "fp8"}, 0.0, NUMERICS)
    for dtype in SMALLER_WEIGHTS:
        if DTYPE_BYTES.get(dtype, 0.5) < DTYPE_BYTES.get(job.weights, 0.5):
            yield Candidate("weights", f"quantise the weights to {dtype}", {"inference.weights": dtype}, 0.0, NUMERICS)
    layout = job.layout
    degree = layout.tensor * 2
    while degree <= 8:
        change: dict[str, object] = {"parallelism.tensor": degree}
        hardware = degree > layout.gpus_per_node
        if hardware:
            change["hardware.gpus_per_node"] = degree
        if written(context.document, "parallelism.data") not in (None, "auto"):
            change["parallelism.data"] = max(1, layout.data * layout.tensor // degree)
        title = f"split the model over {degree} GPUs (tensor parallelism)"
        yield Candidate("tensor", title, change, cost.TENSOR_PER_DOUBLING, HARDWARE if hardware else 0)
        degree *= 2
