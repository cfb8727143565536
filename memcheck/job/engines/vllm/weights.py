"""Weights and buffers of each pipeline rank as vLLM lays them out.

Source: vLLM 0.20.2 and 0.33.0: ``distributed/utils.py`` (``get_pp_indices``), ``model_executor/layers/linear.py``
(``QKVParallelLinear``: KV heads are replicated where there are fewer than ranks), ``vocab_parallel_embedding.py``
(tables are padded to 64 rows), ``mamba/mamba_mixer2.py`` (each rank has a group of its own, and an fp32 ``A``),
``rotary_embedding`` (one table of cosines and sines per kind of rotation).
"""

from __future__ import annotations

from math import prod

from memcheck.autograd.tensor import ceil_div, round_up
from memcheck.job.engines.types import EngineSettings
from memcheck.job.engines.vllm.caches import convolved_columns, extra_group_columns, kv_heads
from memcheck.job.engines.vllm.versions import Version
from memcheck.models.module_types import Attention, Indexer, KeysAsValuesAttention, LatentAttention, Mixer, Mlp, Moe
from memcheck.models.parameters import block_tensors, outer_tensors, tower_runs
from memcheck.models.types import Architecture, Block, ParameterTensor
from memcheck.record import Record

VOCABULARY_PADDING = 64
"""Rows to whose multiple every table of words is padded (``DEFAULT_VOCAB_PADDING_SIZE``)."""
PER_LAYER_TABLE = "embed_tokens_per_layer.weight"
"""A table of words with a part for each layer, which is divided like the embedding (Gemma 3n and 4)."""
SCALE_BYTES = 16
"""Four fp32 scales of queries, keys, values and probabilities that each attention layer keeps as buffers."""
MXFP4_WIDTH = 256
"""To whose multiple the hidden size of MXFP4 experts is padded (``mxfp4_round_up_hidden_size_and_intermediate_size``);
vllm 0.11.0 logs 13.47 GiB of gpt-oss-20b."""
BITS = {"fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "int4": 4, "fp4": 4, "mxfp4": 4}
"""Bits of one weight, without its share of a scale."""
BYTE_BITS = 8
BF16, FP32 = 2, 4
"""Bytes of one element."""


class WeightScale(Record):
    """The scale of quantised weights."""

    weights: int
    """Weights that share it."""
    bits: int


SCALES = {
    "int4": WeightScale(weights=128, bits=20),
    "fp4": WeightScale(weights=16, bits=8),
    "mxfp4": WeightScale(weights=32, bits=8),
}
"""GPTQ's and AWQ's fp16 scale and 4-bit zero point; NVFP4's fp8 scale; MXFP4's exponent."""


class RankBytes(Record):
    """Resident bytes of one pipeline rank before any cache."""

    weights_bytes: int
    """Weights of the language model, and of an encoder."""
    buffers_bytes: int
    towers_bytes: int = 0
    """Weights of vision and audio towers, which the first rank holds whole."""


class StageLayers(Record):
    """The layers of one pipeline rank: from ``first`` to ``last`` (excluded)."""

    first: int
    last: int


def stages(layers: int, pipeline: int) -> tuple[StageLayers, ...]:
    """Divide ``layers`` layers over the pipeline ranks.

    Layers that do not divide go to the ranks before the last, one each, from the back (``get_pp_indices``).
    """
    counts = [layers // pipeline] * pipeline
    last_rank = pipeline - 1
    for extra in range(layers % pipeline):
        counts[last_rank - 1 - extra] += 1
    found, first = [], 0
    for count in counts:
        found.append(StageLayers(first, first + count))
        first += count
    return tuple(found)


def rank_bytes(architecture: Architecture, settings: EngineSettings, version: Version) -> tuple[RankBytes, ...]:
    """Return the bytes of weights and buffers of one tensor-parallel rank, for every pipeline stage."""
    layers = architecture.layers()
    of_block: dict[Block, int] = {}
    for layer, _ in architecture.blocks:
        if layer not in of_block:
            of_block[layer] = sum(
                _bytes(tensor, owner, architecture, settings, version) for tensor, owner in _owned(layer)
            )
            of_block[layer] += _added(layer, settings)
    found = []
    for rank, (first, last) in enumerate(stages(len(layers), settings.pipeline)):
        weights = sum(of_block[layer] for layer in layers[first:last])
        is_first, is_last = rank == 0, rank == settings.pipeline - 1
        for tensor in outer_tensors(architecture):
            if _on_rank(tensor, architecture, version, is_first=is_first, is_last=is_last):
                weights += _bytes(tensor, None, architecture, settings, version)
        if is_first:
            weights += _encoder_bytes(architecture, settings, version)
        towers = _tower_bytes(architecture) if is_first and settings.pictures else 0
        buffers = _buffers(architecture, layers[first:last], settings, version)
        found.append(RankBytes(weights_bytes=weights, buffers_bytes=buffers, towers_bytes=towers))
    return tuple(found)


def _owned(layer: Block) -> list[tuple[ParameterTensor, object]]:
    """List every tensor of a layer with the part that owns it; None: the layer itself."""
    if layer.shared_with.later:
        return [(tensor, layer.second_mixer) for tensor in block_tensors(layer)]
    parts = (layer.mixer, layer.second_mixer, layer.cross and layer.cross.attention, layer.mlp)
    owned: list[tuple[ParameterTensor, object]] = []
    for part in parts:
        if part is not None:
            owned += [(tensor, part) for tensor in part.tensors]
    return owned + [(tensor, None) for tensor in block_tensors(layer)[len(owned) :]]


def _on_rank(
    tensor: ParameterTensor, architecture: Architecture, version: Version, *, is_first: bool, is_last: bool
) -> bool:
    """Say whether a tensor outside of the layers is on a pipeline rank, which may be the first or the last of them.

    The first rank has the embedding, the last one the final norm and the head, for which it needs a tied embedding.
    """
    is_table = tensor.group in ("embedding", "position")
    if (is_table or tensor.group == "head") and architecture.model_type in version.both_ends:
        return True
    if not is_table:
        return is_last
    last_has_table = architecture.tie_word_embeddings or architecture.model_type in version.table_on_last
    return is_first or (is_last and last_has_table)


def _bytes(
    tensor: ParameterTensor, owner: object, architecture: Architecture, settings: EngineSettings, version: Version
) -> int:
    """Return the bytes of one tensor on a tensor-parallel rank, in the dtype in which it is stored."""
    shape = list(tensor.shape)
    ranks = settings.tensor
    if isinstance(owner, Mlp | Moe) and architecture.model_type in version.whole_networks:
        ranks = 1
    if isinstance(owner, Attention | LatentAttention) and architecture.model_type in version.whole_attention:
        ranks = 1
    if tensor.shard == "vocab" or tensor.name.endswith(PER_LAYER_TABLE):
        ranks = 1 if architecture.model_type == "whisper" else ranks
        shape[0] = ceil_div(shape[0], VOCABULARY_PADDING) * VOCABULARY_PADDING
        shape[0] = ceil_div(shape[0], ranks)
    elif tensor.group == "experts":
        _cut_experts(shape, tensor, owner, ranks)
    elif tensor.shard != "none" or _divided_norm(tensor, owner):
        _cut(shape, tensor, owner, ranks)
    numel = prod(shape)
    if tensor.name.endswith("A_log") or (tensor.group == "router" and architecture.model_type in FP32_ROUTERS):
        return FP32 * numel
    return _stored_bytes(tensor, numel, architecture, settings)


def _cut(shape: list[int], tensor: ParameterTensor, owner: object, ranks: int) -> None:
    """Divide a tensor of a layer over the tensor ranks, in place: ``shape`` becomes that of one rank.

    Row-parallel layers are cut along their inputs, and keep their bias whole; column-parallel ones along their outputs.
    KV heads are replicated where there are fewer than ranks.
    """
    transposed = tensor.transposed and len(shape) == 2
    along_second = (tensor.shard == "row") != transposed
    if along_second and len(shape) == 1:
        return
    dimension = 1 if along_second else 0
    size = shape[dimension]
    if isinstance(owner, Attention) and tensor.shard == "column":
        kv_heads_on_rank = kv_heads(owner.kv_heads, ranks)
        key_width = owner.kv_heads * owner.head_dim
        value_width = owner.kv_heads * (owner.v_head_dim or owner.head_dim)
        if owner.fused_qkv and size == owner.heads * owner.head_dim + 2 * key_width:
            shape[dimension] = owner.head_dim * (owner.heads // ranks + 2 * kv_heads_on_rank)
            return
        if size in (key_width, value_width):
            shape[dimension] = size // owner.kv_heads * kv_heads_on_rank
            return
    has_groups = "conv1d" in tensor.name or "in_proj" in tensor.name
    if isinstance(owner, Mixer) and owner.kind == "mamba2" and dimension == 0 and has_groups:
        size += extra_group_columns(owner, ranks)
    shape[dimension] = ceil_div(size, ranks)


def _divided_norm(tensor: ParameterTensor, owner: object) -> bool:
    """Whether a norm inside a mixer has a part of its weight on each rank (lightning attention)."""
    return isinstance(owner, Mixer) and owner.kind == "lightning" and tensor.name.endswith("norm.weight")


def _cut_experts(shape: list[int], tensor: ParameterTensor, owner: object, ranks: int) -> None:
    """Divide every expert's matrices over the tensor ranks, in place; there is no expert parallelism.

    A tensor of three dimensions is [experts, rows, columns]. One of two is a bias [experts, rows], or the rows of all
    experts in one matrix.
    """
    is_bias = len(shape) == 2 and isinstance(owner, Moe) and shape[0] == owner.experts
    if len(shape) == 3 and tensor.shard != "none":
        dimension = 2 if (tensor.shard == "row") != tensor.transposed else 1
        shape[dimension] = ceil_div(shape[dimension], ranks)
    elif is_bias and tensor.shard == "column":
        shape[1] = ceil_div(shape[1], ranks)
    elif len(shape) == 2 and not is_bias:
        shape[0] = ceil_div(shape[0], ranks)


def _stored_bytes(tensor: ParameterTensor, numel: int, architecture: Architecture, settings: EngineSettings) -> int:
    """Return the bytes of ``numel`` elements as stored: matrices in the plan's quantization, all else in bf16."""
    kind = settings.weights
    if BITS[kind] >= BITS["bf16"]:
        return numel * BITS[kind] // BYTE_BITS
    is_expert = tensor.group == "experts"
    is_linear = tensor.linear and tensor.group not in ("head", "router")
    quantised = is_expert or is_linear or tensor.group == "shared_experts"
    if architecture.model_type == "gpt_oss":  # its experts alone, in MXFP4
        quantised = is_expert
        if kind == "fp4":
            kind = "mxfp4"
            if is_expert and len(tensor.shape) == 3:
                numel = numel // architecture.hidden_size * round_up(architecture.hidden_size, MXFP4_WIDTH)
    if not quantised or len(tensor.shape) < 2:
        return BF16 * numel
    scale_bits = 0
    if kind in SCALES:
        scale_bits = ceil_div(numel, SCALES[kind].weights) * SCALES[kind].bits
    return ceil_div(numel * BITS[kind] + scale_bits, BYTE_BITS)


def _added(layer: Block, settings: EngineSettings) -> int:
    """Return the bytes that vLLM's layer has and transformers' has not.

    It has a value matrix where keys are also the values (Gemma 4).
    """
    mixer = layer.mixer
    if not isinstance(mixer, KeysAsValuesAttention):
        return 0
    hidden = next((tensor.shape[1] for tensor in mixer.tensors if tensor.linear and tensor.shard == "column"), 0)
    return BF16 * hidden * mixer.head_dim * kv_heads(mixer.kv_heads, settings.tensor)


def _encoder_bytes(architecture: Architecture, settings: EngineSettings, version: Version) -> int:
    """Return the bytes on one rank of the encoder of an encoder-decoder, which is divided like the decoder."""
    encoder = 0
    for tensors, layers, part in tower_runs(architecture):
        if part == "encoder":
            encoder += layers * sum(_bytes(tensor, None, architecture, settings, version) for tensor in tensors)
    return encoder


def _tower_bytes(architecture: Architecture) -> int:
    """Return the bytes of the vision and audio towers, which each rank of the first stage holds whole, in bf16."""
    towers = 0
    for tensors, layers, part in tower_runs(architecture):
        if part != "encoder":
            towers += layers * BF16 * sum(tensor.count for tensor in tensors)
    return towers


def _buffers(architecture: Architecture, layers: tuple[Block, ...], settings: EngineSettings, version: Version) -> int:
    """Return the bytes of tables and scales that a rank holds outside of its parameters."""
    buffers = 0
    for layer in layers:
        for mixer in (layer.mixer, layer.second_mixer):
            if isinstance(mixer, Attention | LatentAttention):
                buffers += SCALE_BYTES
            if isinstance(mixer, Mixer) and mixer.kind == "mamba2":  # a copy of the convolution's weight
                columns = convolved_columns(mixer) + extra_group_columns(mixer, settings.tensor)
                buffers += BF16 * columns // settings.tensor * mixer.kernel
        if layer.cross is not None:
            buffers += SCALE_BYTES
    if architecture.model_type in version.mask_of_positions:
        buffers += architecture.max_position_embeddings**2
    if architecture.model_type in version.own_rotation:
        return buffers
    return buffers + rotary_bytes(architecture, layers, version)


def rotary_bytes(architecture: Architecture, layers: tuple[Block, ...], version: Version) -> int:
    """Return the bytes of the tables of cosines and sines: a row for each position, one table for each kind of
    rotation.
    """
    mixers = [mixer for layer in layers for mixer in (layer.mixer, layer.second_mixer)]
    widths = {mixer.rotary_dim for mixer in mixers if isinstance(mixer, Attention) and mixer.rotary_dim}
    widths |= {mixer.qk_rope_head_dim for mixer in mixers if isinstance(mixer, LatentAttention)}
    rows = architecture.max_position_embeddings
    if architecture.model_type in version.stretched_rotation:
        rows *= STRETCHED_POSITIONS
    columns = sum(widths)
    if len(widths) == 1 and isinstance(architecture.rotary_tables, int):
        columns *= architecture.rotary_tables
    has_indexer = any(isinstance(mixer, LatentAttention) and isinstance(mixer.extension, Indexer) for mixer in mixers)
    if has_indexer and architecture.model_type in INDEXER_TABLES:
        columns *= 2
    item_bytes = FP32 if architecture.model_type == "gpt_oss" else BF16
    return rows * columns * item_bytes


FP32_ROUTERS = ("glm4_moe", "minimax")
"""Types whose routers are fp32."""
INDEXER_TABLES = ("deepseek_v32",)
"""Types whose indexer has a table of its own."""
STRETCHED_POSITIONS = 4
"""Rows of ``MRotaryEmbedding``'s table for each position."""
