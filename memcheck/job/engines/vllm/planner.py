"""Groups of layers, blocks, tokens and refusals: the arithmetic of vLLM's planner.

Source: vLLM 0.20.2 ``v1/core/kv_cache_utils.py``, 0.33.0 ``v1/core/kv_cache_planning.py``, both
``v1/kv_cache_interface.py``. Compared with their own answers on 45 models (``tests/engines``).

What vLLM refuses before any question of memory: lengths, heads, pipelines, block sizes.

Source: vLLM ``config/model.py`` (``verify_with_parallel_config``, ``_get_and_verify_max_len``), ``v1/attention``.
"""

from __future__ import annotations

from collections.abc import Sequence

from memcheck.autograd.tensor import ceil_div
from memcheck.errors import UnsupportedError
from memcheck.job.engines.types import Cache, CacheGroup, EngineSettings, KvPool, Refusal
from memcheck.job.engines.vllm.caches import generation
from memcheck.job.engines.vllm.versions import Version
from memcheck.models.module_types import Attention, LatentAttention
from memcheck.models.types import Architecture
from memcheck.record import Record

FULL = ("FullAttentionSpec", "MLAAttentionSpec")
WINDOWS = ("SlidingWindowSpec", "ChunkedLocalAttentionSpec")
GIB = 2**30
EVEN_GROUPS = 1.5
"""Groups of layers are as large as the most frequent kind of cache, if that has less than this times the layers of the
rarest kind (``_get_kv_cache_groups_uniform_page_size``)."""


class LayerCache(Record):
    """The KV cache of one layer, with the number of the layer in the model."""

    layer: int
    cache: Cache


def request_pages(cache: Cache, length: int, settings: EngineSettings, version: Version) -> int:
    """Return how many blocks of a layer one request of ``length`` tokens holds at most.

    ``max_memory_usage_bytes`` of the layer's spec.
    """
    if cache.kind in FULL:
        return ceil_div(length, cache.block)
    if cache.kind in WINDOWS:
        batches = settings.pipeline + 1 if version.overlapping_batches else 1
        tokens = cache.window + batches * settings.batched_tokens
        if cache.kind == "ChunkedLocalAttentionSpec":
            return ceil_div(min(tokens, length), cache.block)
        # a sliding window counts the token that attends, and may begin in the middle of a block
        return ceil_div(min(tokens - 1, length), cache.block) + 1
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
    flat: list[LayerCache] = []
    for number, caches in enumerate(layers):
        flat += [LayerCache(number, cache) for cache in caches]
    if not flat:
        return ()
    if len({entry.cache for entry in flat}) == 1:
        return (_group(flat, mixed=False),)
    if _same_tokens([entry.cache for entry in flat]):
        return (_group(flat, mixed=True),)
    by_cache: dict[Cache, list[LayerCache]] = {}
    for entry in _equal_pages(flat, version):
        by_cache.setdefault(entry.cache, []).append(entry)
    counts = [len(alike) for alike in by_cache.values()]
    layers_per_group = max(counts) if max(counts) < min(counts) * EVEN_GROUPS else min(counts)
    groups = []
    for alike in by_cache.values():
        number_of_groups = ceil_div(len(alike), layers_per_group)
        # layers are dealt out to the groups in turn
        groups += [_group(alike[start::number_of_groups], mixed=False) for start in range(number_of_groups)]
    return tuple(groups)


def _group(entries: Sequence[LayerCache], *, mixed: bool) -> CacheGroup:
    """Return a group of layers. ``mixed``: their pages differ in size."""
    layers = tuple([entry.layer for entry in entries])
    return CacheGroup(layers, tuple([entry.cache for entry in entries]), mixed)


def _same_tokens(caches: Sequence[Cache]) -> bool:
    """Say whether all layers need blocks for the same tokens (``UniformTypeKVCacheSpecs.is_uniform_type``)."""
    first = caches[0]
    if any(cache.block != first.block for cache in caches):
        return False
    if first.kind in FULL:
        return all(cache.kind in FULL for cache in caches)
    tokens_of_first = (first.kind, first.window, first.states)
    return all((cache.kind, cache.window, cache.states) == tokens_of_first for cache in caches)


def _equal_pages(entries: Sequence[LayerCache], version: Version) -> list[LayerCache]:
    """Give all layers the largest page, by more tokens in a block or, from 0.33 on, by padding.

    Versions that pad do so for a recurrent state, which has no tokens to add, and for pages that do not divide the
    largest, unless they are latent attention's.

    Raises:
        UnsupportedError: a page does not divide the largest, and the version does not pad it.
    """
    page_bytes = max(entry.cache.page_bytes for entry in entries)
    equal = []
    for layer, cache in entries:
        divides = page_bytes % cache.page_bytes == 0
        is_smaller_state = cache.kind == "MambaSpec" and cache.page_bytes < page_bytes
        may_pad = version.pads_pages and cache.kind != "MLAAttentionSpec"
        if may_pad and (is_smaller_state or not divides):
            resized = cache._replace(page_bytes=page_bytes)
        elif divides:
            resized = cache._replace(block=cache.block * (page_bytes // cache.page_bytes), page_bytes=page_bytes)
        else:
            raise UnsupportedError(
                f"vLLM {version.name} cannot give the {cache.kind} of {cache.page_bytes:,} B per block the page of"
                f" {page_bytes:,} B that other layers have",
                "choose another `block_size` or `kv_cache`",
                "/inference",
            )
        equal.append(LayerCache(layer, resized))
    return equal


def on_rank(groups: Sequence[CacheGroup], first: int, last: int) -> tuple[CacheGroup, ...]:
    """Return the groups with the layers ``first`` to ``last`` (excluded) alone: those of one pipeline rank.

    A group without a layer there stays, empty, with the caches of the whole model: it decides how many blocks a request
    takes.
    """
    groups_of_rank = []
    for group in groups:
        entries = [
            LayerCache(layer, cache)
            for layer, cache in zip(group.layers, group.caches, strict=True)
            if first <= layer < last
        ]
        own = _group(entries, mixed=group.mixed)
        groups_of_rank.append(own if entries else own._replace(caches=group.caches))
    return tuple(groups_of_rank)


def block_bytes(groups: Sequence[CacheGroup]) -> int:
    """Bytes of one block of a rank's pool: those of the largest group, whose memory all groups use in turn."""
    return max(sum(cache.page_bytes for cache in group.caches[: len(group.layers)]) for group in groups)


def pages_of(groups: Sequence[CacheGroup], length: int, settings: EngineSettings, version: Version) -> int:
    """Return how many blocks of the pool one request of ``length`` tokens takes: each group of layers has its own."""
    pages = 0
    for group in groups:
        distinct_caches = dict.fromkeys(group.caches)
        pages += max(request_pages(cache, length, settings, version) for cache in distinct_caches)
    return pages


def longest_length(
    groups: Sequence[CacheGroup], available_bytes: int, most: int, settings: EngineSettings, version: Version
) -> int:
    """Search the tokens of the longest request whose blocks fit into ``available_bytes``, by bisection.

    ``most``: the longest that is tried. 0: not one token fits.
    """
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
    pools = [
        RankPool(groups, available)
        for groups, available in zip(ranks, available_bytes, strict=True)
        if has_layers(groups)
    ]
    length = settings.length or settings.longest
    if not pools:
        return KvPool(blocks=1, tokens=length, concurrency=1.0, length=length)
    if not settings.length:
        longest = [longest_length(pool.groups, pool.for_requests(version), length, settings, version) for pool in pools]
        length = min(longest)
        if length <= 0:
            available = min(pool.for_requests(version) for pool in pools)
            return Refusal(kind="auto", words=version.words["auto"], available_bytes=available, pointer=POINTER)
    for pool in pools:
        refusal = _refusal_of_request(pool.groups, pool.for_requests(version), length, settings, version)
        if refusal is not None:
            return refusal
    blocks = min(pool.available_bytes // block_bytes(pool.groups) for pool in pools)
    concurrency = blocks / pages_of(pools[0].groups, length, settings, version)
    return KvPool(blocks=blocks, tokens=int(concurrency * length), concurrency=concurrency, length=length)


class RankPool(Record):
    """The layers of one pipeline rank, and its bytes for their KV cache."""

    groups: tuple[CacheGroup, ...]
    available_bytes: int

    def for_requests(self, version: Version) -> int:
        """Return the bytes that the check of one request counts: those of a block held back are not among them."""
        return self.available_bytes - (block_bytes(self.groups) if version.null_block else 0)


def has_layers(groups: Sequence[CacheGroup]) -> bool:
    """Say whether a pipeline rank has a layer with a KV cache."""
    return any(group.layers for group in groups)


def _refusal_of_request(
    groups: tuple[CacheGroup, ...], available_bytes: int, length: int, settings: EngineSettings, version: Version
) -> Refusal | None:
    """Return the engine's error if one request of ``length`` tokens does not fit into ``available_bytes``; else None.

    ``groups``: of one pipeline rank.
    """
    if available_bytes <= 0:
        return Refusal(kind="none", words=version.words["none"], available_bytes=available_bytes, pointer=POINTER)
    needed = pages_of(groups, length, settings, version) * block_bytes(groups)
    if needed <= available_bytes:
        return None
    longest = longest_length(groups, available_bytes, length, settings, version)
    return Refusal(
        kind="too-long",
        words=version.too_long(length, gib(needed), gib(available_bytes), longest),
        needed_bytes=needed,
        available_bytes=available_bytes,
        longest=longest,
        pointer="/inference/max_model_len",
    )


POINTER = "/inference/gpu_memory_utilization"


def gib(count: int) -> str:
    """GiB with two decimals as vLLM writes them (``utils/mem_utils.py``, ``format_gib``)."""
    return f"{round(count / GIB, 2)}"


FP8_FROM = 80
"""Compute architecture from which an attention backend takes a cache in fp8 (a T4 has none)."""
BLOCK_STEP = 16
"""Every attention backend on NVIDIA GPUs takes multiples of 16 tokens."""


def refused(architecture: Architecture, settings: EngineSettings, version: Version, arch: str | None) -> Refusal | None:
    """Return the first error with which the engine ends before it measures memory; None if there is none."""
    if architecture.model_type in version.absent:
        return Refusal("setup", version.words["absent"], pointer="/model")
    mixers = [
        mixer
        for layer, _ in architecture.blocks
        for mixer in (layer.mixer, layer.second_mixer)
        if isinstance(mixer, Attention | LatentAttention)
    ]
    ranks = settings.tensor
    for mixer in mixers:
        if mixer.heads % ranks:
            return _setup(version.words["heads"].format(heads=mixer.heads, tensor=ranks), "tensor")
        if isinstance(mixer, Attention) and mixer.kv_heads % ranks and ranks % mixer.kv_heads:
            heads = f"{mixer.kv_heads} KV heads"
            words = f"AssertionError: {heads} neither divide nor are divided by tensor parallel size {ranks}"
            return _setup(words, "tensor")
    if settings.pipeline > 1 and architecture.model_type in version.no_pipeline:
        return _setup(version.words["pipeline"], "pipeline")
    if settings.length > settings.longest > 0:
        words = version.words["too_many"].format(length=settings.length, longest=settings.longest)
        return _setup(words, "max_model_len")
    if settings.kv_cache == "fp8" and 0 < generation(arch) < FP8_FROM and mixers:
        return _setup("No valid attention backend found: kv_cache_dtype fp8 is not supported on this GPU", "kv_cache")
    if settings.block is not None and settings.block % BLOCK_STEP and mixers:
        words = f"No valid attention backend found: block_size {settings.block} is no multiple of {BLOCK_STEP}"
        return _setup(words, "block_size")
    return None


def require_modelled(architecture: Architecture, version: Version, pipeline: int) -> None:
    """Check that memcheck knows how this version lays the model out.

    Raises:
        UnsupportedError: it is an encoder, its modules are others than those computed here, or a rank has no layer.
    """
    mixers = [layer.mixer for layer, _ in architecture.blocks]
    encoder = any(isinstance(mixer, Attention) and mixer.bidirectional for mixer in mixers)
    if (
        encoder
        or (architecture.encoder is not None and architecture.model_type not in ENCODED)
        or architecture.model_type in version.unmodelled
    ):
        raise UnsupportedError(
            f"memcheck has no model of vLLM {version.name} with {architecture.model_type}",
            "size the model without an engine, or exclude the plan",
            "/model",
        )
    if pipeline > architecture.num_layers:
        raise UnsupportedError(
            f"pipeline {pipeline} is more than the {architecture.num_layers} layers of the model",
            "write a smaller `pipeline`",
            "/inference/pipeline",
        )
    if architecture.vision is not None and architecture.vision.text_layers_that_read_images:
        raise UnsupportedError(
            f"memcheck has no model of vLLM {version.name} with layers that read pictures by cross attention",
            "size its language model alone: `model: {part: language}`",
            "/model",
        )


ENCODED = ("whisper",)
"""Encoder-decoders whose cross attention memcheck computes."""


def _setup(words: str, key: str) -> Refusal:
    return Refusal(kind="setup", words=words, pointer=f"/inference/{key}")
