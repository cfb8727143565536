"""DeepSeek V4 (modeling_deepseek_v4.py): streams with hyper-connections, attention to a window and to compressed keys,
experts with clamped gates.
"""

from __future__ import annotations

from memcheck.models.decoder import StackDimensions, decoder, linear, read_sizes, rms_norm, routed, stack
from memcheck.models.families.deepseek import note_mtp_layers
from memcheck.models.module_types import KERNELS, Compressed, HashedMoe, SharedExperts
from memcheck.models.reader import ConfigReader
from memcheck.models.types import (
    Architecture,
    Attention,
    Block,
    Fp32Params,
    HeadLayer,
    HyperConnections,
    Moe,
    ParameterTensor,
)

NORM = "rmsnorm-fp32-weight"
WINDOWED, SPARSE, HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
RATES = {SPARSE: 4, HEAVY: 128}
"""``default_compress_rates``."""
RATIOS = {0: WINDOWED, 4: SPARSE, 128: HEAVY}
"""``_COMPRESS_RATIO_TO_LAYER_TYPE``."""
HASH_MOE, HASH_LAYERS = "hash_moe", 3
DEFAULT_ROTARY_DIVISOR = 8
"""Heads' elements to a rotated one, by default."""
IRRELEVANT_KEYS = (
    "expert_dtype", "hc_eps", "index_topk", "n_shared_experts", "norm_topk_prob", "topk_method", "rope_theta",
    "compress_rope_theta", "attention_bias", "swiglu_limit", "routed_scaling_factor", "router_jitter_noise",
)  # fmt: skip
NOTE = "the indexers get no gradient: transformers makes a mask of every token and key of their choice"
FP32_PARAMS = ("_hc.", "hc_head", "sinks", "position_bias", "norm")
"""``_keep_in_fp32_modules_strict`` of the class."""
FP32_PARAMS_OF_FP16 = (
    "compressor.kv_proj",
    "compressor.gate_proj",
    "indexer.kv_proj",
    "indexer.gate_proj",
    "scorer.weights_proj",
)
"""``_keep_in_fp32_modules`` of the class."""


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: deepseek_v4``: hyper-connections over ``hc_mult`` residual streams, one
    key-value head, compressed keys.

    Each layer attends to a sliding window, and to keys that are compressed from 4 or 128 tokens each.
    """
    config.ignore(*IRRELEVANT_KEYS)
    size = read_sizes(config, kv_heads="optional", head_dim=512)
    if config.integer("num_key_value_heads", default=1, null=1) != 1:
        config.fail("num_key_value_heads", "keys are one head, which all queries share", "write 1")
    config.refuse("mlp_bias", "memcheck has no model of experts with biases here")
    size = size._replace(kv_heads=1)
    hidden, streams = size.hidden, config.integer("hc_mult", default=4)
    rotary_dim = _rotary_dim(config, size)
    sinkhorn_iterations = config.integer("hc_sinkhorn_iters", default=20)
    attention_types = _layer_types(config, size.layers)
    attention_of_type = _attentions(config, size, rotary_dim)
    moe = _experts(config, hidden)
    connection_tensors = (
        *_hyper_connection_tensors("attn_hc", hidden, streams),
        *_hyper_connection_tensors("ffn_hc", hidden, streams),
    )

    def build_layer(kind: tuple[str, bool]) -> Block:
        """Build one layer. ``kind``: its attention type, and whether its experts are chosen by a hash of the token."""
        attention_type, is_hashed = kind
        return Block(
            mixer=attention_of_type[attention_type],
            mlp=HashedMoe(*moe) if is_hashed else moe,
            input_norm=rms_norm(hidden, "input_layernorm", NORM),
            mlp_norm=rms_norm(hidden, "post_attention_layernorm", NORM),
            extra_tensors=connection_tensors,
            extension=HyperConnections(sinkhorn_iterations),
        )

    config.note(NOTE)
    note_mtp_layers(config)
    return decoder(
        config,
        size,
        stack(zip(attention_types, _hash_routed(config, size.layers), strict=True), build_layer),
        tied=False,
        final_norm=rms_norm(hidden, "model.norm", NORM),
        rotary_tables=(rotary_dim // 2,) * 2,
        streams=streams,
        head_layer=_stream_collapse(hidden, streams),
        fp32_params=Fp32Params(always=FP32_PARAMS, of_fp16=FP32_PARAMS_OF_FP16),
    )


def _attentions(config: ConfigReader, size: StackDimensions, rotary_dim: int) -> dict[str, Attention]:
    """Build the attention of each kind of layer, to its window and to compressed keys.

    ``rotary_dim``: rotated elements of a head. Sparse layers alone have an indexer.
    """
    window, dropout = config.integer("sliding_window", default=128), config.dropout("attention_dropout")
    compression_rates, compressed = _compression_rates(config), _compressed(config)
    attentions = {}
    for attention_type in RATIOS.values():
        compressor = compressed._replace(rate=compression_rates.get(attention_type, 0))
        if attention_type != SPARSE:
            compressor = compressor._replace(index_heads=0, index_dim=0)
        attentions[attention_type] = Attention(
            size.heads,
            kv_heads=1,
            head_dim=size.head_dim,
            rotary_dim=rotary_dim,
            window=window,
            sinks="logit",
            kernels=KERNELS._replace(sdpa=False, flash=False),
            dropout=dropout,
            tensors=_attention_tensors(size, compressor),
            extension=compressor,
            qkv_bias=False,
            out_bias=False,
            query_norm=None,
            key_norm=None,
        )
    return attentions


def _stream_collapse(hidden: int, streams: int) -> HeadLayer:
    """Return ``DeepseekV4HyperHead``, which makes the rows that the head reads of ``streams`` streams."""
    tensors = (
        ParameterTensor("model.hc_head.hc_fn", (streams, streams * hidden), "mixer"),
        ParameterTensor("model.hc_head.hc_base", (streams,), "mixer"),
        ParameterTensor("model.hc_head.hc_scale", (1,), "mixer"),
    )
    return HeadLayer(activation="", tensors=tensors)


def _rotary_dim(config: ConfigReader, size: StackDimensions) -> int:
    """Read how many elements of each head are rotated.

    ``partial_rotary_factor`` says which share; else ``qk_rope_head_dim`` says how many; else an eighth.
    """
    rope_head_dim = config.optional_integer("qk_rope_head_dim")
    share = config.number(
        "partial_rotary_factor", default=(rope_head_dim or size.head_dim // DEFAULT_ROTARY_DIVISOR) / size.head_dim
    )
    rotary_dim = int(size.head_dim * share)
    if rotary_dim < 2 or rotary_dim % 2 or rotary_dim > size.head_dim:
        config.fail("partial_rotary_factor", f"{rotary_dim} of {size.head_dim} elements cannot be rotated in pairs")
    return rotary_dim


def _compression_rates(config: ConfigReader) -> dict[str, int]:
    """Read how many tokens become one compressed key, by kind of layer.

    The older keys of each kind override the mapping.
    """
    tokens_per_key = dict(RATES)
    if config.has("compress_rates"):
        section = config.section("compress_rates")
        tokens_per_key = {kind: section.integer(kind, default=RATES[kind]) for kind in RATES}
    for key, kind in (("compress_rate_csa", SPARSE), ("compress_rate_hca", HEAVY)):
        tokens_per_key[kind] = config.integer(key, default=tokens_per_key[kind], null=tokens_per_key[kind])
    return tokens_per_key


def _layer_types(config: ConfigReader, layers: int) -> tuple[str, ...]:
    """Read the kind of every layer from ``layer_types`` or the older ``compress_ratios``.

    By default the first two layers are heavily compressed, and then one kind alternates with the other.
    """
    ratios, types = config.integers("compress_ratios"), config.texts("layer_types")
    if types is None and ratios:
        unknown_ratio = next((ratio for ratio in ratios if ratio not in RATIOS), None)
        if unknown_ratio is not None:
            config.fail("compress_ratios", f"unknown ratio {unknown_ratio}", f"known: {', '.join(map(str, RATIOS))}")
        types = tuple(RATIOS[ratio] for ratio in ratios)[:layers]
    if types is None:
        return tuple(SPARSE if i > 1 and i % 2 else HEAVY for i in range(layers))
    if len(types) != layers:
        config.fail("layer_types", f"{len(types)} kinds of layers are named, the model has {layers}")
    unknown_type = next((t for t in types if t not in RATIOS.values()), None)
    if unknown_type is not None:
        config.fail("layer_types", f"unknown layer type {unknown_type!r}", f"known: {', '.join(RATIOS.values())}")
    return types


def _hash_routed(config: ConfigReader, layers: int) -> tuple[bool, ...]:
    """Say for each layer whether its experts are chosen by a hash of the token id (``mlp_layer_types``,
    ``num_hash_layers``).
    """
    hash_layers = config.integer("num_hash_layers", default=HASH_LAYERS, null=HASH_LAYERS, minimum=0)
    types = config.texts("mlp_layer_types")
    if types is None:
        return tuple(i < hash_layers for i in range(layers))
    if len(types) != layers:
        config.fail("mlp_layer_types", f"mlp_layer_types names {len(types)} layers, the model has {layers}")
    unknown = next((t for t in types if t not in (HASH_MOE, "moe")), None)
    if unknown is not None:
        config.fail("mlp_layer_types", f"unknown kind {unknown!r} in mlp_layer_types", f"known: {HASH_MOE}, moe")
    return tuple(t == HASH_MOE for t in types)


def _compressed(config: ConfigReader) -> Compressed:
    """Read the ranks of the query and output matrices and the indexer's size. The compression rate is left out."""
    groups, heads = config.integer("o_groups", default=8), config.integer("num_attention_heads")
    if heads % groups:
        config.fail("o_groups", f"{heads} heads cannot be divided into {groups} groups", "use a divisor of the heads")
    return Compressed(
        rate=0,
        groups=groups,
        query_rank=config.integer("q_lora_rank"),
        output_rank=config.integer("o_lora_rank", default=1024),
        index_heads=config.integer("index_n_heads", default=64),
        index_dim=config.integer("index_head_dim", default=128),
    )


def _experts(config: ConfigReader, hidden: int) -> Moe:
    """Build routed experts with one shared expert, whose router scores are ``sqrt(softplus(x))``."""
    if config.text("scoring_func", default="sqrtsoftplus") != "sqrtsoftplus":
        config.fail("scoring_func", "memcheck has a model of the scores' square-rooted softplus alone")
    width = config.integer("moe_intermediate_size")
    return routed(
        hidden,
        (config.integer("n_routed_experts", "num_local_experts"), config.integer("num_experts_per_tok")),
        width,
        config.activation(),
        SharedExperts(width, gate=False, runs_first=False),
        router="sqrt-softplus",
        clamp="act",
    )


def _hyper_connection_tensors(module: str, hidden: int, streams: int) -> tuple[ParameterTensor, ...]:
    """List the tensors of ``DeepseekV4HyperConnection``, which computes how one half reads, mixes and writes
    ``streams`` streams.
    """
    weights = (2 + streams) * streams
    return (
        ParameterTensor(f"{module}.fn", (weights, streams * hidden), "mixer"),
        ParameterTensor(f"{module}.base", (weights,), "mixer"),
        ParameterTensor(f"{module}.scale", (3,), "mixer"),
    )


def _attention_tensors(size: StackDimensions, compressor: Compressed) -> tuple[ParameterTensor, ...]:
    """List the tensors of ``DeepseekV4Attention``: low-rank queries and outputs, one key-value head, compressor and
    indexer.

    The indexer gets no gradient, so its tensors are fixed.
    """
    prefix, hidden, head_dim = "self_attn.", size.hidden, size.head_dim
    heads = size.heads * head_dim
    tensors = (
        *linear(prefix + "q_a_proj", compressor.query_rank, hidden, "attention", "none"),
        ParameterTensor(prefix + "q_a_norm.weight", (compressor.query_rank,), "norm"),
        *linear(prefix + "q_b_proj", heads, compressor.query_rank, "attention", "column"),
        *linear(prefix + "kv_proj", head_dim, hidden, "attention", "none"),
        ParameterTensor(prefix + "kv_norm.weight", (head_dim,), "norm"),
        *linear(
            prefix + "o_a_proj",
            compressor.groups * compressor.output_rank,
            heads // compressor.groups,
            "attention",
            "none",
        ),
        *linear(prefix + "o_b_proj", hidden, compressor.groups * compressor.output_rank, "attention", "none"),
        ParameterTensor(prefix + "sinks", (size.heads,), "attention"),
    )
    if not compressor.rate:
        return tensors
    tensors += _compressor_tensors(prefix + "compressor", hidden, head_dim, compressor)
    if not compressor.index_heads:
        return tensors
    indexer = prefix + "compressor.indexer"
    indexer_tensors = (
        *_compressor_tensors(indexer, hidden, compressor.index_dim, compressor),
        *linear(
            indexer + ".q_b_proj",
            compressor.index_heads * compressor.index_dim,
            compressor.query_rank,
            "attention",
            "none",
        ),
        *linear(indexer + ".scorer.weights_proj", compressor.index_heads, hidden, "attention", "none"),
    )
    return tensors + tuple(t._replace(fixed=True) for t in indexer_tensors)


def _compressor_tensors(module: str, hidden: int, width: int, compressor: Compressed) -> tuple[ParameterTensor, ...]:
    """List the tensors of the module that compresses ``rate`` tokens into one key of ``width`` elements.

    Sparse layers, which have an indexer, compress overlapping windows, so their matrices are twice as wide.
    """
    output_width = 2 * width if compressor.index_heads else width
    return (
        *linear(f"{module}.kv_proj", output_width, hidden, "attention", "none"),
        *linear(f"{module}.gate_proj", output_width, hidden, "attention", "none"),
        ParameterTensor(f"{module}.position_bias", (compressor.rate, output_width), "attention"),
        ParameterTensor(f"{module}.kv_norm.weight", (width,), "norm"),
    )
