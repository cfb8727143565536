"""Groups of layers, blocks, tokens and refusals: the arithmetic of vLLM's planner.

Source: vLLM 0.20.2 ``v1/core/kv_cache_utils.py``, 0.33.0 ``v1/core/kv_cache_planning.py``, both
``v1/kv_cache_interface.py``. Compared with their own answers on 45 models (``tests/engines``).
"""

from __future__ import annotations

from collections.abc import Sequence

from memcheck.autograd.tensor import ceil_div
from memcheck.errors import UnsupportedError
from memcheck.job.engines.types import Cache, CacheGroup, EngineSettings, KvPool, Refusal
from memcheck.job.engines.vllm.versions import Version

FULL = ("FullAttentionSpec", "MLAAttentionSpec")
WINDOWS = ("SlidingWindowSpec", "ChunkedLocalAttentionSpec")
GIB = 2**30


def request_pages(cache: Cache, length: int, settings: EngineSettings, version: Version) -> int:
    """Return how many blocks of a layer one request of ``length`` tokens holds at most.

    ``max_memory_usage_bytes`` of the layer's spec.
    """
    if cache.kind in FULL:
        return ceil_div(length, cache.block)
    if cache.kind in WINDOWS:
        batches = settings.pipeline + 1 if version.overlapping_batches else 1
        chunked = cache.kind == "ChunkedLocalAttentionSpec"
        kept = cache.window + batches * settings.batched_tokens - (0 if chunked else 1)
        return ceil_div(min(kept, length), cache.block) + (0 if chunked else 1)
    if cache.kind == "CrossAttentionSpec":
        return ceil_div(settings.batched_tokens, cache.block)
    return cache.states


def grouped(layers: Sequence[tuple[Cache, ...]], version: Version) -> tuple[CacheGroup, ...]:
    """Divide the layers of the whole model into groups that share one table of blocks each.

    ``layers``: the caches of each layer. Equal caches are one group. Caches that hold the same tokens are one group of
    mixed pages. All else is padded to one page size and cut into groups of equally many layers.

    Raises:
        UnsupportedError: this version cannot make the pages of all layers equal.
    """
    flat = [(number, cache) for number, caches in enumerate(layers) for cache in caches]
    if not flat:
        return ()
    if len({cache for _, cache in flat}) == 1:
        return (_group(flat, mixed=False),)
    if _same_tokens([cache for _, cache in flat]):
        return (_group(flat, mixed=True),)
    flat = _equal_pages(flat, version)
    kinds: dict[Cache, list[tuple[int, Cache]]] = {}
    for number, cache in flat:
        kinds.setdefault(cache, []).append((number, cache))
    counts = [len(found) for found in kinds.values()]
    size = max(counts) if max(counts) < min(counts) * 1.5 else min(counts)
    groups = []
    for found in kinds.values():
        number_of_groups = ceil_div(len(found), size)
        groups += [_group(found[i::number_of_groups], mixed=False) for i in range(number_of_groups)]
    return tuple(groups)


def _group(found: Sequence[tuple[int, Cache]], *, mixed: bool) -> CacheGroup:
    return CacheGroup(tuple([n for n, _ in found]), tuple([c for _, c in found]), mixed)


def _same_tokens(caches: Sequence[Cache]) -> bool:
    """Say whether all layers need blocks for the same tokens (``UniformTypeKVCacheSpecs.is_uniform_type``)."""
    first = caches[0]
    if any(c.block != first.block for c in caches):
        return False
    if first.kind in FULL:
        return all(c.kind in FULL for c in caches)
    return all(c.kind == first.kind and c.window == first.window and c.states == first.states for c in caches)


def _equal_pages(flat: Sequence[tuple[int, Cache]], version: Version) -> list[tuple[int, Cache]]:
    """Give all layers the largest page, by more tokens in a block or, from 0.33 on, by padding."""
    page = max(cache.page_bytes for _, cache in flat)
    found = []
    for number, cache in flat:
        if page % cache.page_bytes == 0 and (cache.kind != "MambaSpec" or cache.page_bytes == page):
            cache = cache._replace(block=cache.block * (page // cache.page_bytes), page_bytes=page)
        elif version.pads_pages and cache.kind != "MLAAttentionSpec":
            cache = cache._replace(page_bytes=page)
        elif page % cache.page_bytes == 0:
            cache = cache._replace(block=cache.block * (page // cache.page_bytes), page_bytes=page)
        else:
            raise UnsupportedError(
                f"vLLM {version.name} cannot give the {cache.kind} of {cache.page_bytes:,} B per block the page of"
                f" {page:,} B that other layers have",
                "choose another `block_size` or `kv_cache`",
                "/inference",
            )
        found.append((number, cache))
    return found


def on_rank(groups: Sequence[CacheGroup], first: int, last: int) -> tuple[CacheGroup, ...]:
    """Keep the layers ``first`` to ``last`` (excluded) of each group: those of one pipeline rank."""
    found = []
    for group in groups:
        kept = [(n, c) for n, c in zip(group.layers, group.caches, strict=True) if first <= n < last]
        found.append(CacheGroup(tuple([n for n, _ in kept]), tuple([c for _, c in kept]) or group.caches, group.mixed))
    return tuple(found)


def block_bytes(groups: Sequence[CacheGroup]) -> int:
    """Bytes of one block of a rank's pool: those of the largest group, whose memory all groups use in turn."""
    return max(sum(cache.page_bytes for cache in group.caches[: len(group.layers)]) for group in groups)


def pages_of(groups: Sequence[CacheGroup], length: int, settings: EngineSettings, version: Version) -> int:
    """Return how many blocks of the pool one request of ``length`` tokens takes: each group of layers has its own."""
    return sum(
        max(request_pages(cache, length, settings, version) for cache in dict.fromkeys(g.caches)) for g in groups
    )


def longest_length(
    groups: Sequence[CacheGroup], available_bytes: int, most: int, settings: EngineSettings, version: Version
) -> int:
    """Search the tokens of the longest request that fits into ``available_bytes``, ``most`` at most; 0: not one."""
    budget = available_bytes // block_bytes(groups)
    if pages_of(groups, 1, settings, version) > budget:
        return 0
    low, high = 1, most
    while low < high:
        middle = (low + high + 1) // 2
        if pages_of(groups, middle, settings, version) <= budget:
            low = middle
        else:
            high = middle - 1
    return low


def planned(
    ranks: Sequence[tuple[CacheGroup, ...]],
    available_bytes: Sequence[int],
    settings: EngineSettings,
    version: Version,
) -> KvPool | Refusal:
    """Make a pool of the bytes that each pipeline rank has for its KV cache, or return the error of the engine.

    ``ranks``: the groups of each pipeline rank. The rank with the fewest blocks decides for all. From 0.33 on one
    block is held back, so that it does not count for a request.
    """
    used = [(groups, n) for groups, n in zip(ranks, available_bytes, strict=True) if any(g.layers for g in groups)]
    length = settings.length or settings.longest
    if not used:
        return KvPool(blocks=1, tokens=length, concurrency=1.0, length=length)
    checked = [n - block_bytes(groups) * version.null_block for groups, n in used]
    if not settings.length:
        fits = [longest_length(g, n, length, settings, version) for (g, _), n in zip(used, checked, strict=True)]
        if min(fits) <= 0:
            return Refusal(kind="auto", words=version.words["auto"], available_bytes=min(checked), pointer=POINTER)
        length = min(fits)
    for (groups, _), n in zip(used, checked, strict=True):
        if n <= 0:
            return Refusal(kind="none", words=version.words["none"], available_bytes=n, pointer=POINTER)
        needed = pages_of(groups, length, settings, version) * block_bytes(groups)
        if needed > n:
            longest = longest_length(groups, n, length, settings, version)
            words = version.too_long(length, gib(needed), gib(n), longest)
            return Refusal(
                kind="too-long",
                words=words,
                needed_bytes=needed,
                available_bytes=n,
                longest=longest,
                pointer="/inference/max_model_len",
            )
    blocks = min(n // block_bytes(groups) for groups, n in used)
    concurrency = blocks / pages_of(used[0][0], length, settings, version)
    return KvPool(blocks=blocks, tokens=int(concurrency * length), concurrency=concurrency, length=length)


POINTER = "/inference/gpu_memory_utilization"


def gib(count: int) -> str:
    """GiB with two decimals as vLLM writes them (``utils/mem_utils.py``, ``format_gib``)."""
    return f"{round(count / GIB, 2)}"
