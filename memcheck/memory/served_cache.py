"""The KV cache of a plan without an engine, in the blocks and pages in which serving engines keep it.

Windows keep the tokens in flight as well, groups of layers are padded to one page, recurrent states have several pages.
The arithmetic is that of vLLM's newest version that memcheck knows, which is the largest of the known ones.
"""

from __future__ import annotations

from memcheck.autograd.tensor import ceil_div
from memcheck.errors import UnsupportedError
from memcheck.job.engines.types import Cache, CacheGroup, EngineSettings
from memcheck.job.engines.vllm.caches import layer_caches
from memcheck.job.engines.vllm.planner import WINDOWS, grouped, on_rank, request_pages
from memcheck.job.engines.vllm.versions import Version, known
from memcheck.job.types import DTYPE_BYTES, InferenceJob
from memcheck.models.types import Architecture

ARCH = "sm_90"
"""A GPU on which an engine keeps the most pages of a state."""


def layer_bytes(job: InferenceJob, a: Architecture, first: int, last: int) -> dict[int, int] | None:
    """Return the KV cache's bytes by layer number, from ``first`` to ``last`` (excluded), for all sequences of a job.

    vLLM pads all groups of layers to pages of one size: padding counts with the layers of its group. None: memcheck
    does not know how vLLM keeps this model's cache.
    """
    version = known()[-1]
    settings = EngineSettings(
        name="vllm",
        version=version.name,
        tensor=job.layout.tensor,
        pipeline=job.layout.pipeline,
        longest=job.context_length,
        batched_tokens=job.pass_tokens,
        kv_cache="fp8" if DTYPE_BYTES[job.kv_cache] == 1 else "auto",
        weights="fp32" if job.kv_cache == "fp32" else "bf16",
    )
    try:
        layers = layer_caches(a, settings, version, ARCH).layers
        groups = on_rank(grouped(layers, version), first, last)
    except UnsupportedError:
        return None
    bytes_by_layer: dict[int, int] = {}
    padded_block_bytes = max((_block_bytes(group) for group in groups), default=0)
    for group in groups:
        blocks = max(_blocks(cache, job, settings, version) for cache in group.caches)
        group_bytes = blocks * padded_block_bytes
        for number, cache in zip(group.layers, group.caches, strict=False):
            share = group_bytes * cache.page_bytes // max(1, _block_bytes(group))
            bytes_by_layer[number] = bytes_by_layer.get(number, 0) + share
    return bytes_by_layer


def _block_bytes(group: CacheGroup) -> int:
    """Return the bytes of one block (a page of each layer) of the layers of a group that are on the rank."""
    return sum(cache.page_bytes for cache in group.caches[: len(group.layers)])


def _blocks(cache: Cache, job: InferenceJob, settings: EngineSettings, version: Version) -> int:
    """Return the number of KV-cache blocks that one layer needs for all sequences of the job.

    A sliding window has the window's tokens for each sequence, and the tokens of the passes in flight, which all
    sequences share.
    """
    per_sequence = request_pages(cache, job.context_length, settings, version)
    if cache.kind not in WINDOWS:
        return job.batch_size * per_sequence
    of_window = request_pages(cache, job.context_length, settings._replace(batched_tokens=0), version)
    in_flight = ceil_div((settings.pipeline + 1) * settings.batched_tokens, cache.block)
    return max(per_sequence, min(job.batch_size * per_sequence, job.batch_size * of_window + in_flight))
