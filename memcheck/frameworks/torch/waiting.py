"""What a step keeps pending outside its units: looked-up rows for a tower's, and hidden states of a batch's other
columns.
"""

from __future__ import annotations

from memcheck.autograd.tensor import rounded, rounded_bytes
from memcheck.frameworks.torch.model_buffers import ModelBuffers
from memcheck.frameworks.torch.rank_units import Run
from memcheck.frameworks.torch.stream import stream_dtype
from memcheck.frameworks.torch.trained_parts import is_hooked
from memcheck.job.types import DTYPE_BYTES, TrainingJob


def features_of(job: TrainingJob, buffers: ModelBuffers) -> int:
    """``features["token_embeddings"]`` of the caller (sentence-transformers 6.2, base/modules/transformer.py)."""
    shape = job.micro_batch_size * job.sequence_length, buffers.architecture.hidden_size
    return (job.head.columns - 1) * rounded_bytes(shape, stream_dtype(buffers.setting))


def waiting_rows(job: TrainingJob, buffers: ModelBuffers, runs: list[Run]) -> tuple[int, int]:
    """Bytes of the looked-up rows while a tower runs, and of their gradient while its backward does."""
    a = buffers.architecture
    crossed = a.vision is not None and a.vision.crosses  # pictures come first, and the text waits for none
    if crossed or not any(run.unit.kind == "projector" for run in runs):
        return 0, 0
    tokens = job.rows * job.sequence_length
    size = rounded(tokens * a.hidden_size * DTYPE_BYTES[stream_dtype(buffers.setting)])
    trained = any(t.trained for t in runs[0].unit.tensors)
    hooked = is_hooked(job, a)
    return 0 if hooked and not trained else size, size if trained or hooked else 0
