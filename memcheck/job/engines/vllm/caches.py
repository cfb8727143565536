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

DEFAULT_BLOCK = 16
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


def layer_caches(
    architecture: Architecture, settings: EngineSettings, version: Version, arch: str | None
) -> tuple[tuple[tuple[Cache, ...], ...], int]:
    """Return the caches of every layer on one tensor-parallel rank, and the tokens of a block of attention.

    ``arch``: the compute architecture of the GPU, such as ``sm_90``. A layer without a cache has an empty tuple.

    Raises:
        UnsupportedError: memcheck does not know how vLLM keeps what a layer remembers.
    """
    block = settings.block or preferred_block(architecture, settings, version, arch)
    mixers = [mixer for layer, _ in architecture.blocks for mixer in (layer.mixer, layer.second_mixer)]
    attention = next((mixer for mixer in mixers if isinstance(mixer, Attention | LatentAttention)), None)
    states = [mixer for mixer in mixers if isinstance(mixer, Mixer)]
    page, cached = 0, attention is not None and settings.prefix_caching
    if states and attention is not None:
        largest = max(_state_bytes(mixer, architecture, settings) for mixer in states)
        token_bytes = _cache(attention, 1, settings, version, arch, architecture.model_type).page_bytes
        step = block
        if isinstance(attention, LatentAttention):
            step = max(step, 128)
        if cached and _exports(states, arch) and version.exports_states:
            step = lcm(step, GDN_ALIGNMENT)
        block = max(block, step * ceil_div(largest, step * token_bytes))
        page = block * token_bytes
    found: dict[Block, tuple[Cache, ...]] = {}
    for layer, _ in architecture.blocks:
        if layer not in found:
            found[layer] = _of_layer(layer, architecture, (block, page, cached), settings, version, arch)
    return tuple([found[layer] for layer in architecture.layers()]), block


def _of_layer(
    layer: Block,
    architecture: Architecture,
    sizes: tuple[int, int, bool],
    settings: EngineSettings,
    version: Version,
    arch: str | None,
) -> tuple[Cache, ...]:
    """Return the caches of one layer. ``sizes``: tokens of a block, bytes of a state's page (0: its own), whether
    prefixes of states are cached.
    """
    block = sizes[0]
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
    item = item_bytes(settings)
    if isinstance(mixer, LatentAttention) and model_type in AS_HEADS:
        heads = kv_heads(mixer.heads, settings.tensor)
        head_dim = mixer.qk_rope_head_dim + (mixer.qk_nope_head_dim if model_type == "minicpm3" else 0)
        page = 2 * block * heads * head_dim * item
        return Cache(
            kind="FullAttentionSpec", block=block, page_bytes=page, heads=heads, head_dim=head_dim, item_bytes=item
        )
    if isinstance(mixer, LatentAttention):
        width = mixer.kv_lora_rank + mixer.qk_rope_head_dim
        token = width * item
        if isinstance(mixer.extension, Indexer):
            token = _sparse_token_bytes(width, settings, version, arch)
        return Cache(
            kind="MLAAttentionSpec", block=block, page_bytes=block * token, heads=1, head_dim=width, item_bytes=item
        )
    if isinstance(mixer.extension, Compressed):
        raise UnsupportedError(
            "memcheck has no model of vLLM's cache of DeepSeek V4, which keeps compressed keys and those of a window",
            "size another model, or exclude the plan",
            "/model",
        )
    if model_type in OWN_DTYPE:
        item = item_bytes(settings._replace(kv_cache="auto"))
    heads = kv_heads(mixer.kv_heads, settings.tensor)
    page = block * heads * (mixer.head_dim + (mixer.v_head_dim or mixer.head_dim)) * item
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


def _sparse_token_bytes(width: int, settings: EngineSettings, version: Version, arch: str | None) -> int:
    """Return the bytes per token of a latent that a sparse backend reads (DeepSeek V3.2, GLM 5).

    In fp8, Hopper's FlashMLA has a layout of its own, and Blackwell's FlashInfer plain codes; 0.33 takes the latter by
    itself on Blackwell.
    """
    blackwell = generation(arch) >= 100
    if settings.kv_cache == "auto":
        return width if blackwell and version.pads_pages else 2 * width
    return width if blackwell else SPARSE_FP8_BYTES


def _index_cache(own: Indexer, block: int) -> Cache:
    """Return the fp8 keys of the indexer, with an fp32 scale each 128 elements (``mla/indexer.py``)."""
    token = own.head_dim + own.head_dim // 128 * INDEX_SCALE
    return Cache(kind="MLAAttentionSpec", block=block, page_bytes=block * token, heads=1, head_dim=token, item_bytes=1)


def generation(arch: str | None) -> int:
    """Return the number of a compute architecture: 90 of ``sm_90``; 0 of another vendor's."""
    digits = (arch or "").removeprefix("sm_").rstrip("af")
    return int(digits) if digits.isdigit() else 0


def _exports(states: list[Mixer], arch: str | None) -> bool:
    """Whether all states are delta nets whose kernel exports them in the middle of a prefill."""
    return all(mixer.kind == "gated-delta-net" for mixer in states) and generation(arch) >= 90


def _state(
    mixer: Mixer,
    architecture: Architecture,
    sizes: tuple[int, int, bool],
    settings: EngineSettings,
    version: Version,
    arch: str | None,
) -> Cache:
    """Return the state of one recurrent layer: one page per request, several where prefixes are cached."""
    block, page, cached = sizes
    size = _state_bytes(mixer, architecture, settings)
    pages = 1
    if cached:
        pages = 3 if version.exports_states and (mixer.kind == "mamba2" or _exports([mixer], arch)) else 2
    tokens = block if cached else settings.longest or settings.length
    return Cache(kind="MambaSpec", block=tokens, page_bytes=max(page, size), states=pages, head_dim=size)


def _state_bytes(mixer: Mixer, architecture: Architecture, settings: EngineSettings) -> int:
    """Return the bytes of one layer's state of one request on a tensor-parallel rank (``MambaStateShapeCalculator``).

    The convolution's last ``kernel - 1`` columns, and the recurrent state in the dtype that the configuration says.

    Raises:
        UnsupportedError: memcheck does not know the state of this kind of layer.
    """
    ranks, item = settings.tensor, 4 if settings.weights == "fp32" else 2
    wide = 4 if architecture.model_type in WIDE_STATES else item
    columns = max(mixer.kernel - 1, 0)
    if mixer.kind == "mamba1":
        return (mixer.heads * columns // ranks) * item + mixer.heads // ranks * mixer.key_dim * wide
    if mixer.kind == "mamba2":
        groups = mixer.groups + extra_groups(mixer.groups, ranks)
        convolved = mixer.heads * mixer.head_dim + 2 * groups * mixer.key_dim
        return (
            ceil_div(convolved, ranks) * columns * item
            + ceil_div(mixer.heads, ranks) * mixer.head_dim * mixer.key_dim * wide
        )
    if mixer.kind == "gated-delta-net":
        convolved = 2 * (mixer.key_heads or mixer.heads) * mixer.key_dim + mixer.heads * mixer.head_dim
        return convolved // ranks * columns * item + mixer.heads // ranks * mixer.head_dim * mixer.key_dim * wide
    if mixer.kind == "short-convolution":
        return mixer.heads // ranks * columns * item
    if mixer.kind == "lightning":
        return mixer.heads // ranks * mixer.head_dim * mixer.head_dim * item
    if mixer.kind == "kimi-delta":
        width = mixer.heads * mixer.head_dim
        return 3 * (width // ranks) * columns * item + mixer.heads // ranks * mixer.head_dim * mixer.head_dim * 4
    raise UnsupportedError(
        f"memcheck does not know the state that vLLM keeps of a {mixer.kind} layer",
        "size the model without an engine",
        "/model",
    )


def extra_groups(groups: int, tensor: int) -> int:
    """Groups that are added so that each tensor-parallel rank has one (``extra_groups_for_head_shards``)."""
    return 0 if groups % tensor == 0 else tensor - groups


def preferred_block(architecture: Architecture, settings: EngineSettings, version: Version, arch: str | None) -> int:
    """Return the tokens of a block that the attention backend of this model on this GPU prefers."""
    mixers = [mixer for layer, _ in architecture.blocks for mixer in (layer.mixer, layer.second_mixer)]
    latent = next((mixer for mixer in mixers if isinstance(mixer, LatentAttention)), None)
    number, fp8 = generation(arch), settings.kv_cache != "auto"
    if latent is not None and architecture.model_type not in AS_HEADS:
        if isinstance(latent.extension, Indexer):
            return SPARSE_BLOCK
        if 90 <= number < 100:
            return 64 if fp8 else DEFAULT_BLOCK  # FlashMLA; FlashAttention's MLA
        return 32 if 100 <= number < 120 else DEFAULT_BLOCK  # FlashInfer's MLA; Triton's
    widths = {mixer.head_dim for mixer in mixers if isinstance(mixer, Attention)}
    if fp8 and version.pads_pages and 90 <= number < 100 and 512 in widths:
        return 64  # FlashInfer and FlashAttention 4 share no smaller block
    return DEFAULT_BLOCK
