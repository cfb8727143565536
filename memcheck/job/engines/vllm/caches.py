"""The KV cache of each layer as vLLM specifies it, and the tokens of a block.

Source: vLLM 0.20.2 and 0.33.0: ``v1/kv_cache_interface.py`` (pages), ``model_executor/layers/mamba/mamba_utils.py``
(states), ``platforms/interface.py`` (``_align_hybrid_block_size``), ``platforms/cuda.py`` (order of backends), the
``get_supported_kernel_block_sizes`` of ``v1/attention/backends``.
"""

from __future__ import annotations

from math import lcm

from memcheck.autograd.tensor import ceil_div
from memcheck.errors import UnsupportedError
from memcheck.job.engines.types import Cache, EngineSettings
from memcheck.job.engines.vllm.versions import Version
from memcheck.models.module_types import Attention, Compressed, Indexer, LatentAttention, Mixer, ReusingAttention
from memcheck.models.types import Architecture, Block
from memcheck.record import Record

DEFAULT_BLOCK = 16
LATENT_BLOCK = 128
"""Tokens to whose multiple the blocks of latent attention are enlarged in a model with recurrent states."""
INDEX_SCALE_ELEMENTS = 128
"""Elements of an indexer's key that share a scale."""
BF16, FP32 = 2, 4
"""Bytes of one element."""
SPARSE_BLOCK = 64
"""DeepSeek V3.2's indexer, and each sparse backend on NVIDIA GPUs, take blocks of 64 tokens."""
INDEX_SCALE = 4
"""Bytes of the fp32 scale that the indexer keeps for every 128 elements of a key."""
SPARSE_FP8_BYTES = 656
"""Bytes per token of FlashMLA's fp8 layout: 512 codes, 4 fp32 scales and 64 rotary elements in bf16."""
GDN_ALIGNMENT = 64
"""Tokens between two states that FlashInfer's delta net can export (``FLASHINFER_GDN_CHECKPOINT_ALIGNMENT``)."""
WIDE_STATES = ("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "nemotron_h")
"""Model types whose configurations ask for fp32 recurrent states."""
AS_HEADS = ("minicpm3", "youtu")
"""Model types with latent attention whose keys and values are cached head by head, as wide as the keys (MiniCPM 3) or
as the configuration's ``head_dim``, which is the rotary part (Youtu)."""
OWN_DTYPE = ("falcon",)
"""Model types that keep their cache in the weights' dtype, whatever ``kv_cache`` says."""


class PageSizes(Record):
    """The sizes that all layers of a model share in vLLM's pool."""

    block: int
    """Tokens of a block of attention."""
    state_page_bytes: int
    """Bytes of one block of attention, to which the page of a smaller recurrent state is padded; 0: no padding."""
    caches_state_prefixes: bool
    """Prefix caching keeps recurrent states, too."""


class LayerCaches(Record):
    """The caches of all layers of a model on one tensor-parallel rank."""

    layers: tuple[tuple[Cache, ...], ...]
    """The caches of each layer, first layer first; a layer may have none or several."""
    block: int
    """Tokens of a block of attention."""


def layer_caches(
    architecture: Architecture, settings: EngineSettings, version: Version, arch: str | None
) -> LayerCaches:
    """Return the caches of every layer on one tensor-parallel rank.

    ``arch``: the compute architecture of the GPU, such as ``sm_90``.

    Raises:
        UnsupportedError: memcheck does not know how vLLM keeps what a layer remembers.
    """
    sizes = _page_sizes(architecture, settings, version, arch)
    caches: dict[Block, tuple[Cache, ...]] = {}
    for layer, _ in architecture.blocks:
        if layer not in caches:
            caches[layer] = _of_layer(layer, architecture, sizes, settings, version, arch)
    return LayerCaches(tuple([caches[layer] for layer in architecture.layers()]), sizes.block)


def _page_sizes(architecture: Architecture, settings: EngineSettings, version: Version, arch: str | None) -> PageSizes:
    """Return the size of blocks, which is larger than usual in a model with attention and recurrent states.

    A block of attention then has enough tokens to take as many bytes as the largest state
    (``_align_hybrid_block_size``).
    """
    block = settings.block or preferred_block(architecture, settings, version, arch)
    mixers = [mixer for layer, _ in architecture.blocks for mixer in (layer.mixer, layer.second_mixer)]
    attention = next((mixer for mixer in mixers if isinstance(mixer, Attention | LatentAttention)), None)
    states = [mixer for mixer in mixers if isinstance(mixer, Mixer)]
    cached = attention is not None and settings.prefix_caching
    if attention is None or not states:
        return PageSizes(block=block, state_page_bytes=0, caches_state_prefixes=cached)
    largest_state = max(_state_bytes(mixer, architecture, settings) for mixer in states)
    token_bytes = _cache(attention, 1, settings, version, arch, architecture.model_type).page_bytes
    multiple = block  # the block is enlarged to a multiple of this
    if isinstance(attention, LatentAttention):
        multiple = max(multiple, LATENT_BLOCK)
    if cached and version.exports_states and _exports(states, arch):
        multiple = lcm(multiple, GDN_ALIGNMENT)
    block = max(block, multiple * ceil_div(largest_state, multiple * token_bytes))
    return PageSizes(block=block, state_page_bytes=block * token_bytes, caches_state_prefixes=cached)


def _of_layer(
    layer: Block,
    architecture: Architecture,
    sizes: PageSizes,
    settings: EngineSettings,
    version: Version,
    arch: str | None,
) -> tuple[Cache, ...]:
    """Return the caches of one layer: of its mixers, of an indexer, and of cross attention.

    Layers that reuse an earlier layer's keys and values have none of their own.

    Raises:
        UnsupportedError: memcheck does not know how vLLM keeps what the layer remembers.
    """
    block = sizes.block
    caches = []
    for mixer in (layer.mixer, layer.second_mixer):
        if isinstance(mixer, ReusingAttention) or mixer is None:
            continue
        if isinstance(mixer, Attention | LatentAttention):
            own = mixer.extension
            if isinstance(own, Indexer) and (own.heads or not version.shares_indices):
                caches.append(_index_cache(own, block))
            caches.append(_cache(mixer, block, settings, version, arch, architecture.model_type))
        elif isinstance(mixer, Mixer):
            caches.append(_state(mixer, architecture, sizes, settings, version, arch))
        else:
            raise UnsupportedError(
                f"memcheck does not know how vLLM keeps the cache of a {type(mixer).__name__} layer",
                "size the model without an engine",
                "/model",
            )
    if layer.cross is not None:
        cross = _cache(layer.cross.attention, block, settings, version, arch, architecture.model_type)
        caches.append(cross._replace(kind="CrossAttentionSpec"))
    return tuple(caches)


def kv_heads(heads: int, tensor: int) -> int:
    """KV heads on one tensor-parallel rank: heads are replicated where there are fewer than ranks."""
    return max(1, heads // tensor)


def item_bytes(settings: EngineSettings) -> int:
    """Return the bytes of one cached element: one in fp8, else those of the weights' dtype in memory."""
    if settings.kv_cache != "auto":
        return 1
    return 4 if settings.weights == "fp32" else 2


def _cache(
    mixer: Attention | LatentAttention,
    block: int,
    settings: EngineSettings,
    version: Version,
    arch: str | None,
    model_type: str = "",
) -> Cache:
    """Return the cache of one attention: keys and values of each KV head, or one latent of all heads."""
    if isinstance(mixer, LatentAttention):
        return _latent_cache(mixer, block, settings, version, arch, model_type)
    if isinstance(mixer.extension, Compressed):
        raise UnsupportedError(
            "memcheck has no model of vLLM's cache of DeepSeek V4, which keeps compressed keys and those of a window",
            "size another model, or exclude the plan",
            "/model",
        )
    item = item_bytes(settings._replace(kv_cache="auto") if model_type in OWN_DTYPE else settings)
    heads = kv_heads(mixer.kv_heads, settings.tensor)
    value_dim = mixer.v_head_dim or mixer.head_dim
    page = block * heads * (mixer.head_dim + value_dim) * item
    kind = "FullAttentionSpec"
    if mixer.window:
        kind = "ChunkedLocalAttentionSpec" if mixer.chunked_window else "SlidingWindowSpec"
    return Cache(
        kind=kind,
        block=block,
        page_bytes=page,
        heads=heads,
        head_dim=mixer.head_dim,
        window=mixer.window or 0,
        item_bytes=item,
    )


def _latent_cache(
    mixer: LatentAttention, block: int, settings: EngineSettings, version: Version, arch: str | None, model_type: str
) -> Cache:
    """Return the cache of one latent attention: one latent of all heads, or keys and values head by head."""
    item = item_bytes(settings)
    if model_type in AS_HEADS:
        heads = kv_heads(mixer.heads, settings.tensor)
        head_dim = mixer.qk_rope_head_dim + (mixer.qk_nope_head_dim if model_type == "minicpm3" else 0)
        page = 2 * block * heads * head_dim * item  # keys and values
        return Cache(
            kind="FullAttentionSpec", block=block, page_bytes=page, heads=heads, head_dim=head_dim, item_bytes=item
        )
    width = mixer.kv_lora_rank + mixer.qk_rope_head_dim
    token_bytes = width * item
    if isinstance(mixer.extension, Indexer):
        token_bytes = _sparse_token_bytes(width, settings, version, arch)
    page = block * token_bytes
    return Cache(kind="MLAAttentionSpec", block=block, page_bytes=page, heads=1, head_dim=width, item_bytes=item)


def _sparse_token_bytes(width: int, settings: EngineSettings, version: Version, arch: str | None) -> int:
    """Return the bytes per token of a latent of ``width`` elements that a sparse backend reads (DeepSeek V3.2, GLM 5).

    In fp8, Hopper's FlashMLA has a layout of its own, and Blackwell's FlashInfer plain codes; 0.33 takes the latter by
    itself on Blackwell.
    """
    blackwell = generation(arch) >= BLACKWELL
    if settings.kv_cache == "auto":
        return width if blackwell and version.pads_pages else BF16 * width
    return width if blackwell else SPARSE_FP8_BYTES


def _index_cache(own: Indexer, block: int) -> Cache:
    """Return the fp8 keys of the indexer, with an fp32 scale each 128 elements (``mla/indexer.py``)."""
    token = own.head_dim + own.head_dim // INDEX_SCALE_ELEMENTS * INDEX_SCALE
    return Cache(kind="MLAAttentionSpec", block=block, page_bytes=block * token, heads=1, head_dim=token, item_bytes=1)


HOPPER, BLACKWELL, CONSUMER_BLACKWELL = 90, 100, 120
"""The first compute architectures of these generations, as numbers."""


def generation(arch: str | None) -> int:
    """Return the number of a compute architecture: 90 of ``sm_90``; 0 of another vendor's."""
    digits = (arch or "").removeprefix("sm_").rstrip("af")
    return int(digits) if digits.isdigit() else 0


def _exports(states: list[Mixer], arch: str | None) -> bool:
    """Whether all states are delta nets whose kernel exports them in the middle of a prefill."""
    return all(mixer.kind == "gated-delta-net" for mixer in states) and generation(arch) >= HOPPER


def _state(
    mixer: Mixer,
    architecture: Architecture,
    sizes: PageSizes,
    settings: EngineSettings,
    version: Version,
    arch: str | None,
) -> Cache:
    """Return the state of one recurrent layer: one page per request, several where prefixes are cached.

    With prefixes cached a request has the state before its last block and the current one, and a third that a prefill
    exports in its middle. Without, one state covers a whole request.
    """
    state_bytes = _state_bytes(mixer, architecture, settings)
    if sizes.caches_state_prefixes:
        exported = version.exports_states and (mixer.kind == "mamba2" or _exports([mixer], arch))
        pages, tokens = (3 if exported else 2), sizes.block
    else:
        pages, tokens = 1, settings.longest or settings.length
    page_bytes = max(sizes.state_page_bytes, state_bytes)
    return Cache(kind="MambaSpec", block=tokens, page_bytes=page_bytes, states=pages, head_dim=state_bytes)


def _state_bytes(mixer: Mixer, architecture: Architecture, settings: EngineSettings) -> int:
    """Return the bytes of one layer's state of one request on a tensor-parallel rank (``MambaStateShapeCalculator``).

    The convolution's last ``kernel - 1`` columns, and the recurrent state in the dtype that the configuration says.

    Raises:
        UnsupportedError: memcheck does not know the state of this kind of layer.
    """
    ranks, item = settings.tensor, FP32 if settings.weights == "fp32" else BF16
    state_item = FP32 if architecture.model_type in WIDE_STATES else item  # bytes of an element of recurrent states
    past_tokens = max(mixer.kernel - 1, 0)  # that the convolution still reads
    heads = mixer.heads // ranks
    if mixer.kind == "mamba1":  # `heads` are channels
        return (mixer.heads * past_tokens // ranks) * item + heads * mixer.key_dim * state_item
    if mixer.kind == "mamba2":
        convolved = ceil_div(convolved_columns(mixer) + extra_group_columns(mixer, ranks), ranks)
        state = ceil_div(mixer.heads, ranks) * mixer.head_dim * mixer.key_dim
        return convolved * past_tokens * item + state * state_item
    if mixer.kind == "gated-delta-net":  # the convolution runs over queries, keys and values
        convolved = 2 * (mixer.key_heads or mixer.heads) * mixer.key_dim + mixer.heads * mixer.head_dim
        state = heads * mixer.head_dim * mixer.key_dim
        return convolved // ranks * past_tokens * item + state * state_item
    if mixer.kind == "short-convolution":
        return heads * past_tokens * item
    if mixer.kind == "lightning":
        return heads * mixer.head_dim * mixer.head_dim * item
    if mixer.kind == "kimi-delta":  # three convolutions, of queries, keys and values, and a state that is always fp32
        width = mixer.heads * mixer.head_dim
        return 3 * (width // ranks) * past_tokens * item + heads * mixer.head_dim * mixer.head_dim * FP32
    raise UnsupportedError(
        f"memcheck does not know the state that vLLM keeps of a {mixer.kind} layer",
        "size the model without an engine",
        "/model",
    )


def extra_groups(groups: int, tensor: int) -> int:
    """Groups that are added so that each tensor-parallel rank has one (``extra_groups_for_head_shards``)."""
    return 0 if groups % tensor == 0 else tensor - groups


def convolved_columns(mixer: Mixer) -> int:
    """Count the columns that Mamba 2's convolution runs over: the inputs, and keys and queries (B, C) of each group."""
    return mixer.heads * mixer.head_dim + 2 * mixer.groups * mixer.key_dim


def extra_group_columns(mixer: Mixer, tensor: int) -> int:
    """Count the columns that Mamba 2's added groups (:func:`extra_groups`) bring on all ``tensor`` ranks together."""
    return 2 * extra_groups(mixer.groups, tensor) * mixer.key_dim


def preferred_block(architecture: Architecture, settings: EngineSettings, version: Version, arch: str | None) -> int:
    """Return the tokens of a block that the attention backend of this model on this GPU prefers."""
    mixers = [mixer for layer, _ in architecture.blocks for mixer in (layer.mixer, layer.second_mixer)]
    latent = next((mixer for mixer in mixers if isinstance(mixer, LatentAttention)), None)
    on_hopper = HOPPER <= generation(arch) < BLACKWELL
    on_blackwell = BLACKWELL <= generation(arch) < CONSUMER_BLACKWELL
    fp8 = settings.kv_cache != "auto"
    if latent is not None and architecture.model_type not in AS_HEADS:
        if isinstance(latent.extension, Indexer):
            return SPARSE_BLOCK
        if on_hopper:
            return 64 if fp8 else DEFAULT_BLOCK  # FlashMLA; FlashAttention's MLA
        return 32 if on_blackwell else DEFAULT_BLOCK  # FlashInfer's MLA; Triton's
    head_dims = {mixer.head_dim for mixer in mixers if isinstance(mixer, Attention)}
    if fp8 and version.pads_pages and on_hopper and 512 in head_dims:
        return 64  # FlashInfer and FlashAttention 4 share no smaller block
    return DEFAULT_BLOCK
