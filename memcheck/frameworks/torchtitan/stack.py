"""How long torchtitan's steps take: its main branch where no version is stated, and what releases do otherwise.

Up to 0.2.2 hidden states are [batch, sequence, hidden], queries, keys and values come from three products, and sequence
parallelism gathers and scatters along the second dimension; main has one dimension of tokens ("fold batch dim", #4121).
Up to 0.2.1 keys and values are repeated for every query head before attention (``repeat_kv``), and so travel around the
ring of context parallelism; after it the kernels take grouped heads ("GQA without kv repeats", #2259).
The ring is torch's up to 0.2.2; main gathers keys and values ("Remove apply_cp_to_forward", #4218).
"""

from __future__ import annotations

from functools import lru_cache

from memcheck.frameworks.torch.stack import TIMING as TORCH
from memcheck.job.types import TrainingJob

LAST_BATCHED = (0, 2, 2)
LAST_REPEATING = (0, 2, 1)
"""The last releases with a dimension of sequences, and with repeated keys and values."""


def is_batched(job: TrainingJob) -> bool:
    """Say whether hidden states keep a dimension of sequences."""
    release = _release(job)
    return release is not None and release <= LAST_BATCHED


def repeats_kv_heads(job: TrainingJob) -> bool:
    """Say whether keys and values are repeated for every query head."""
    release = _release(job)
    return release is not None and release <= LAST_REPEATING


def _release(job: TrainingJob) -> tuple[int, ...] | None:
    return None if job.framework_version is None else _numbers(job.framework_version)


@lru_cache(maxsize=64)
def _numbers(version: str) -> tuple[int, ...] | None:
    """Return a version such as ``0.2.1`` as numbers; None for anything else."""
    import re

    match = re.fullmatch(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version)
    return None if match is None else tuple(int(part or 0) for part in match.groups())


def context(job: TrainingJob) -> str:
    """The ring of torch in releases; main gathers whole keys and values."""
    return "torch" if is_batched(job) else "whole"


def fused_products(job: TrainingJob) -> str:
    """Queries, keys and values come from one product, but for releases."""
    return "" if is_batched(job) else "attention"


TIMING = TORCH._replace(
    context_kind=context,
    copies_gathered_states=is_batched,
    repeats_kv_heads=repeats_kv_heads,
    fused_products=fused_products,
    fused_norms=True,
    latent_input_tokens="gathered",
    uses_torchao_float8=True,
)
