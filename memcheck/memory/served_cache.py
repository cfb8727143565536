"""The KV cache of a plan without an engine, in the blocks and pages in which serving engines keep it.

Windows keep the tokens in flight as well, groups of layers are padded to one page, recurrent states have several pages.
The arithmetic is that of vLLM's newest version that memcheck knows, which is the largest of the known ones.
"""

from __future__ import annotations

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
    """Bytes of the cache of each layer from ``first`` to ``last`` (excluded), for all sequences of the job.

    Padding belongs to the layers of its group. None: memcheck does not know how an engine keeps this model's cache.
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
        layers, _ = layer_caches(a, settings, version, ARCH)
        groups = on_rank(grouped(layers, version), first, last)
    except UnsupportedError:
        return None
    found: dict[int, int] = {}
    width = max((_width(group) for group in groups), default=0)
    for group in groups:
        pages = max(_pages(cache, job, settings, version) for cache in group.caches)
        total = pages * width
        for number, cache in zip(group.layers, group.caches, strict=False):
            found[number] = found.get(number, 0) + total * cache.page_bytes // max(1, _width(group))
    return found


def _width(group: CacheGroup) -> int:
    """Bytes of one block of all layers of a group that are on the rank."""
    return sum(cache.page_bytes for cache in group.caches[: len(group.layers)])


def _pages(cache: Cache, job: InferenceJob, settings: EngineSettings, version: Version) -> int:
    """Blocks of one layer for all sequences. Of windows, the tokens in flight are those of all sequences together."""
    each = request_pages(cache, job.context_length, settings, version)
    if cache.kind not in WINDOWS:
        return job.batch_size * each
    alone = request_pages(cache, job.context_length, settings._replace(batched_tokens=0), version)
    in_flight = -(-(settings.pipeline + 1) * settings.batched_tokens // cache.block)
    return max(each, min(job.batch_size * each, job.batch_size * alone + in_flight))
