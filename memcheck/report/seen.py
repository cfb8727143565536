"""The allocator's cache in words: why ``nvidia-smi`` shows more than a job needs."""

from __future__ import annotations

from memcheck.accounts.estimate import CACHE, Estimate, Formula
from memcheck.edge.text import gib, words
from memcheck.memory.overhead_terms import CACHE as CACHE_TERM

CACHE_ROW = "cache, given back"

NAMED_CACHE_BYTES = 2**30
"""Cache from which on a reader should know that it is no need of the step."""


def cache_note(estimate: Estimate) -> str:
    """One sentence on the allocator's cache; empty where the cache is below ``NAMED_CACHE_BYTES``."""
    if estimate.cache_bytes < NAMED_CACHE_BYTES:
        return ""
    return (
        f"Cache: {gib(estimate.cache_bytes)} GiB that PyTorch's allocator keeps while there is room and gives back"
        f" before an allocation fails; with it, nvidia-smi shows about {gib(estimate.device_bytes)} GiB."
    )


def formula_head(item: Formula) -> tuple[str, str]:
    """The component that a formula is of, as a key and in words; apart the cache, which is not needed."""
    return (CACHE, CACHE_ROW) if item.formula == CACHE_TERM else (item.component, words(item.component))
