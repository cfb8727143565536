"""Weights and buffers of each pipeline rank as vLLM lays them out.

Source: vLLM 0.20.2 and 0.33.0: ``distributed/utils.py`` (``get_pp_indices``), ``model_executor/layers/linear.py``
(``QKVParallelLinear``: KV heads are replicated where there are fewer than ranks), ``vocab_parallel_embedding.py``
(tables are padded to 64 rows), ``mamba/mamba_mixer2.py`` (each rank has a group of its own, and an fp32 ``A``),
``rotary_embedding`` (one table of cosines and sines per kind of rotation).
"""

from __future__ import annotations

from math import prod

from memcheck.autograd.tensor import ceil_div
from memcheck.job.engines.types import EngineSettings
from memcheck.job.engines.vllm.caches import extra_groups, kv_heads
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
BITS = {"fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "int4": 4, "fp4": 4}
GROUP = {"int4": (128, 20), "fp4": (16, 8), "mxfp4": (32, 8)}
"""Weights that share a scale, and the bits of it: GPTQ's and AWQ's fp16 scale and 4-bit zero point; NVFP4's fp8 scale;
MXFP4's exponent."""


class RankBytes(Record):
    """Resident bytes of one pipeline rank before any cache."""

    weights_bytes: int
    """Weights of the language model, and of an encoder."""
    buffers_bytes: int
    towers_bytes: int = 0
    """Weights of vision and audio towers, which the first rank holds whole."""


def stages(layers: int, pipeline: int) -> tuple[tuple[int, int], ...]:
    """Return the first layer and the end of each pipeline rank. Layers left over go to the ranks before the last."""
    counts = [layers // pipeline] * pipeline
    for i in range(2, layers % pipeline + 2):
        counts[-i] += 1
    return tuple([(sum(counts[:i]), sum(counts[: i + 1])) for i in range(pipeline)])


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
        ends = (rank == 0, rank == settings.pipeline - 1)
        for tensor in outer_tensors(architecture):
            if _on_rank(tensor, architecture, ends, version):
                weights += _bytes(tensor, None, architecture, settings, version)
        encoder, towers = _towers(architecture, settings, version) if ends[0] else (0, 0)
        buffers = _buffers(architecture, layers[first:last], settings, version)
        found.append(RankBytes(weights + encoder, buffers, towers))
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


def _on_rank(tensor: ParameterTensor, architecture: Architecture, ends: tuple[bool, bool], version: Version) -> bool:
    """Say whether a tensor outside of the layers is on a rank. ``ends``: whether the rank is the first, and the
    last.
    """
    first, last = ends
    table = tensor.group in ("embedding", "position")
    if (table or tensor.group == "head") and architecture.model_type in version.both_ends:
        return True
    if tensor.group == "position" and architecture.tie_word_embeddings:
        return first or last
    if table:
        return first or (
            last and (architecture.tie_word_embeddings or architecture.model_type in version.table_on_last)
        )
    return last


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
    if tensor.name.endswith("A_log") or (tensor.group == "router" and architecture.model_type in WIDE_ROUTERS):
        return 4 * numel
    return _held(tensor, numel, architecture, settings)


def _cut(shape: list[int], tensor: ParameterTensor, owner: object, ranks: int) -> None:
    """Divide a tensor of a layer over the tensor ranks, in place."""
    row = (tensor.shard == "row") != (tensor.transposed and len(shape) == 2)
    dimension = 1 if row and len(shape) > 1 else 0
    if row and len(shape) == 1:
        return
    if isinstance(owner, Attention) and tensor.shard == "column":
        width = owner.kv_heads * owner.head_dim
        if owner.fused_qkv and shape[dimension] == owner.heads * owner.head_dim + 2 * width:
            one = owner.head_dim * (owner.heads // ranks + 2 * kv_heads(owner.kv_heads, ranks))
            shape[dimension] = one
            return
        if shape[dimension] in (width, owner.kv_heads * (owner.v_head_dim or owner.head_dim)):
            shape[dimension] = shape[dimension] // owner.kv_heads * kv_heads(owner.kv_heads, ranks)
            return
    if (
        isinstance(owner, Mixer)
        and owner.kind == "mamba2"
        and dimension == 0
        and ("conv1d" in tensor.name or "in_proj" in tensor.name)
    ):
        shape[0] += 2 * extra_groups(owner.groups, ranks) * owner.key_dim
    shape[dimension] = ceil_div(shape[dimension], ranks)


def _divided_norm(tensor: ParameterTensor, owner: object) -> bool:
    """Whether a norm inside a mixer has a part of its weight on each rank (lightning attention)."""
    return isinstance(owner, Mixer) and owner.kind == "lightning" and tensor.name.endswith("norm.weight")


def _cut_experts(shape: list[int], tensor: ParameterTensor, owner: object, ranks: int) -> None:
    """Divide every expert's matrices over the tensor ranks, in place; there is no expert parallelism."""
    if len(shape) == 3 and tensor.shard != "none":
        dimension = 2 if (tensor.shard == "row") != tensor.transposed else 1
        shape[dimension] = ceil_div(shape[dimension], ranks)
    elif len(shape) == 2 and tensor.shard == "column" and isinstance(owner, Moe) and shape[0] == owner.experts:
        shape[1] = ceil_div(shape[1], ranks)
    elif len(shape) == 2 and not (isinstance(owner, Moe) and shape[0] == owner.experts):
        shape[0] = ceil_div(shape[0], ranks)


def _held(tensor: ParameterTensor, numel: int, architecture: Architecture, settings: EngineSettings) -> int:
    """Return the bytes of ``numel`` elements as stored: matrices in the plan's quantization, all else in bf16."""
    kind = settings.weights
    if BITS[kind] >= 16:
        return numel * BITS[kind] // 8
    matrix = (tensor.linear and tensor.group not in ("head", "router")) or tensor.group in ("experts", "shared_experts")
    if architecture.model_type == "gpt_oss":
        matrix, kind = matrix and tensor.group == "experts", "mxfp4" if kind == "fp4" else kind
        if matrix and kind == "mxfp4" and len(tensor.shape) == 3:
            numel = numel // architecture.hidden_size * ceil_div(architecture.hidden_size, MXFP4_WIDTH) * MXFP4_WIDTH
    if not matrix or len(tensor.shape) < 2:
        return 2 * numel
    size, bits = GROUP.get(kind, (0, 0))
    scales = ceil_div(numel, size) * bits if size else 0
    return (numel * BITS.get(kind, 4) + scales + 7) // 8


def _added(layer: Block, settings: EngineSettings) -> int:
    """Return the bytes that vLLM's layer has and transformers' has not.

    It has a value matrix where keys are also the values (Gemma 4).
    """
    mixer = layer.mixer
    if not isinstance(mixer, KeysAsValuesAttention):
        return 0
    hidden = next((tensor.shape[1] for tensor in mixer.tensors if tensor.linear and tensor.shard == "column"), 0)
    return 2 * hidden * mixer.head_dim * kv_heads(mixer.kv_heads, settings.tensor)


def _towers(architecture: Architecture, settings: EngineSettings, version: Version) -> tuple[int, int]:
    """Return the bytes of an encoder, and of the vision and audio towers, on the first pipeline rank.

    The encoder of an encoder-decoder is divided like the decoder. Towers are counted whole.
    """
    encoder, towers = 0, 0
    for tensors, times, part in tower_runs(architecture):
        if part == "encoder":
            encoder += times * sum(_bytes(tensor, None, architecture, settings, version) for tensor in tensors)
        elif settings.pictures:
            towers += times * sum(2 * tensor.count for tensor in tensors)
    return encoder, towers


def _buffers(architecture: Architecture, layers: tuple[Block, ...], settings: EngineSettings, version: Version) -> int:
    """Return the bytes of tables and scales that a rank holds outside of its parameters."""
    found = 0
    for layer in layers:
        for mixer in (layer.mixer, layer.second_mixer):
            if isinstance(mixer, Attention | LatentAttention):
                found += SCALE_BYTES
            if isinstance(mixer, Mixer) and mixer.kind == "mamba2":
                rows = mixer.heads * mixer.head_dim + 2 * mixer.groups * mixer.key_dim
                extra = 2 * extra_groups(mixer.groups, settings.tensor) * mixer.key_dim
                found += 2 * (rows + extra) // settings.tensor * mixer.kernel
        if layer.cross is not None:
            found += SCALE_BYTES
    if architecture.model_type in version.mask_of_positions:
        found += architecture.max_position_embeddings**2
    if architecture.model_type in version.own_rotation:
        return found
    return found + rotary_bytes(architecture, layers, version)


def rotary_bytes(architecture: Architecture, layers: tuple[Block, ...], version: Version) -> int:
    """Return the bytes of the tables of cosines and sines: a row for each position, one table for each kind of
    rotation.
    """
    mixers = [mixer for layer in layers for mixer in (layer.mixer, layer.second_mixer)]
    widths = {mixer.rotary_dim for mixer in mixers if isinstance(mixer, Attention) and mixer.rotary_dim}
    widths |= {mixer.qk_rope_head_dim for mixer in mixers if isinstance(mixer, LatentAttention)}
    rows = architecture.max_position_embeddings
    item = 4 if architecture.model_type == "gpt_oss" else 2
    if architecture.model_type in version.stretched_rotation:
        rows *= 4
    copies = architecture.rotary_tables if isinstance(architecture.rotary_tables, int) else 1
    tables = sum(widths) * (copies if len(widths) == 1 else 1)
    if (
        any(isinstance(mixer, LatentAttention) and isinstance(mixer.extension, Indexer) for mixer in mixers)
        and architecture.model_type in APART
    ):
        tables *= 2
    return rows * tables * item


WIDE_ROUTERS = ("glm4_moe", "minimax")
"""Types whose routers are fp32."""
APART = ("deepseek_v32",)
"""Types whose indexer has a table of its own."""
