"""What follows from the gradient of an embedding that tensor parallelism divides: RowwiseParallel's is replicated."""

from __future__ import annotations

from collections.abc import Sequence

from memcheck.accounts.state import LocalTensor
from memcheck.autograd.tensor import rounded
from memcheck.frameworks.torch.fsdp import wraps
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.models.rough import Rough

TABLE = "embed_tokens.weight"


def table_slice(job: TrainingJob, trained: Sequence[LocalTensor]) -> int:
    """Bytes of the local rows of the gradient, which DTensor's first operation with the divided table clones
    (placement_types.py, _replicate_to_shard). Under FSDP2 they were cloned before they were reduced.
    """
    if not _is_replicated(job):
        return 0
    return max((rounded(t.numel * DTYPE_BYTES[job.recipe.params]) for t in trained if t.name == TABLE), default=0)


def momentum_of_table(job: TrainingJob, kinds: Sequence[tuple[tuple[LocalTensor, ...], int]]) -> int:
    """Bytes that SGD's momentum has beyond the rank's rows of the table: it is a clone of the first gradient
    (torch ``optim/sgd.py``, _single_tensor_sgd: ``buf = grad.detach().clone()``).
    """
    if not _is_replicated(job) or isinstance(job.architecture, Rough):
        return 0
    item, rows = DTYPE_BYTES[job.recipe.optimizer_states], job.architecture.table_rows
    tables = [t for tensors, _ in kinds for t in tensors if t.trained and t.name == TABLE]
    return sum(rounded(rows * t.shape[1] * item) - rounded(t.numel * item) for t in tables)


def _is_replicated(job: TrainingJob) -> bool:
    profile = job.framework
    divided = job.layout.tensor > 1 and not wraps(job) and not profile.own_engine
    return divided and profile.style.whole_table_gradient
