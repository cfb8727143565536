"""DeepSeek V4 (modeling_deepseek_v4.py): streams with hyper-connections, attention to a window and to compressed keys,
experts with clamped gates.
"""

from __future__ import annotations

from memcheck.models.attention_types import Compressed
from memcheck.models.families.deepseek import note_mtp_layers
from memcheck.models.feed_forward_types import HashedMoe
from memcheck.models.layer_inputs import HyperConnections
from memcheck.models.parts.decoder import decoder, rms_norm
from memcheck.models.parts.feed_forward import Shared, routed
from memcheck.models.parts.matrices import linear
from memcheck.models.parts.sizes import StackDimensions, read_sizes
from memcheck.models.parts.stack import stack
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Attention, Block, Moe, ParameterTensor

NORM = "rmsnorm-fp32-weight"
WINDOWED, SPARSE, HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
RATES = {SPARSE: 4, HEAVY: 128}
"""``default_compress_rates``."""
RATIOS = {0: WINDOWED, 4: SPARSE, 128: HEAVY}
"""``_COMPRESS_RATIO_TO_LAYER_TYPE``."""
HASHED, HASH_LAYERS = "hash_moe", 3
ROTARY_SHARE = 8
"""Heads' elements to a rotated one, by default."""
NOTE = "the indexers get no gradient: transformers makes a mask of every token and key of their choice"
WIDE = ("_hc.", "hc_head", "sinks", "position_bias", "norm")
"""``_keep_in_fp32_modules_strict`` of the class."""
WIDE_IN_FP16 = (
    "compressor.kv_proj",
    "compressor.gate_proj",
    "indexer.kv_proj",
    "indexer.gate_proj",
    "scorer.weights_proj",
)
"""``_keep_in_fp32_modules`` of the class."""


def read(config: ConfigReader) -> Architecture:
    """``model_type: deepseek_v4``."""
    config.ignore("expert_dtype", "hc_eps", "index_topk", "n_shared_experts", "norm_topk_prob", "topk_method")
    config.ignore("rope_theta", "compress_rope_theta", "attention_bias", "swiglu_limit", "routed_scaling_factor")
    config.ignore("router_jitter_noise")
    size = read_sizes(config, kv_heads="optional", head_dim=512)
    if config.integer("num_key_value_heads", default=1, null=1) != 1:
        config.fail("num_key_value_heads", "keys are one head, which all queries share", "write 1")
    if config.flag("mlp_bias"):
        config.fail("mlp_bias", "memcheck has no model of experts with biases here")
    size = size._replace(kv_heads=1)
    hidden, streams = size.hidden, config.integer("hc_mult", default=4)
    rotary = _rotary(config, size)
    rounds = config.integer("hc_sinkhorn_iters", default=20)
    window, rates = config.integer("sliding_window", default=128), _rates(config)
    kinds = _layer_types(config, size.layers)
    dropout = config.dropout("attention_dropout")
    base = _sizes(config)
    moe = _experts(config, hidden)
    mixing = (*_connection("attn_hc", hidden, streams), *_connection("ffn_hc", hidden, streams))

    def make(kind: tuple[str, bool]) -> Block:
        rate = rates.get(kind[0], 0)
        own = base._replace(rate=rate)
        if kind[0] != SPARSE:
            own = own._replace(index_heads=0, index_dim=0)
        attention = Attention(
            size.heads,
            1,
            size.head_dim,
            rotary_dim=rotary,
            window=window,
            sinks=True,
            sdpa=False,
            flash=False,
            dropout=dropout,
            tensors=_attention_tensors(size, own),
            own=own,
        )
        experts = HashedMoe(*moe) if kind[1] else moe
        return Block(
            mixer=attention,
            mlp=experts,
            input_norm=rms_norm(hidden, "input_layernorm", NORM),
            mlp_norm=rms_norm(hidden, "post_attention_layernorm", NORM),
            extra_tensors=mixing,
            own=HyperConnections(rounds),
        )

    config.note(NOTE)
    note_mtp_layers(config)
    return decoder(
        config,
        size,
        stack(zip(kinds, _hashed(config, size.layers), strict=True), make),
        tied=False,
        final_norm=rms_norm(hidden, "model.norm", NORM),
        rotary_dims=(rotary // 2,) * 2,
        streams=streams,
        head_tensors=(
            ParameterTensor("model.hc_head.hc_fn", (streams, streams * hidden), "mixer"),
            ParameterTensor("model.hc_head.hc_base", (streams,), "mixer"),
            ParameterTensor("model.hc_head.hc_scale", (1,), "mixer"),
        ),
        fp32_params=WIDE,
        fp32_params_of_fp16=WIDE_IN_FP16,
    )


def _rotary(config: ConfigReader, size: StackDimensions) -> int:
    """``partial_rotary_factor``, else ``qk_rope_head_dim``, else an eighth of each head."""
    stated = config.optional_integer("qk_rope_head_dim")
    share = config.number("partial_rotary_factor", default=(stated or size.head_dim // ROTARY_SHARE) / size.head_dim)
    width = int(size.head_dim * share)
    if width < 2 or width % 2 or width > size.head_dim:
        config.fail("partial_rotary_factor", f"{width} of {size.head_dim} elements cannot be rotated in pairs")
    return width


def _rates(config: ConfigReader) -> dict[str, int]:
    """Tokens of a compressed key, by kind of layer; the older keys of each kind override the mapping."""
    found = dict(RATES)
    if config.has("compress_rates"):
        section = config.section("compress_rates")
        found = {kind: section.integer(kind, default=RATES[kind]) for kind in RATES}
    for key, kind in (("compress_rate_csa", SPARSE), ("compress_rate_hca", HEAVY)):
        found[kind] = config.integer(key, default=found[kind], null=found[kind])
    return found


def _layer_types(config: ConfigReader, layers: int) -> tuple[str, ...]:
    """``layer_types``, else ``compress_ratios``, else two heavily compressed layers and then one after another."""
    ratios, stated = config.integers("compress_ratios"), config.texts("layer_types")
    if stated is None and ratios:
        strange = next((r for r in ratios if r not in RATIOS), None)
        if strange is not None:
            config.fail("compress_ratios", f"unknown ratio {strange}", f"known: {', '.join(map(str, RATIOS))}")
        stated = tuple(RATIOS[r] for r in ratios)[:layers]
    if stated is None:
        return tuple(SPARSE if i > 1 and i % 2 else HEAVY for i in range(layers))
    if len(stated) != layers:
        config.fail("layer_types", f"{len(stated)} kinds of layers are named, the model has {layers}")
    strange_kind = next((t for t in stated if t not in RATIOS.values()), None)
    if strange_kind is not None:
        config.fail("layer_types", f"unknown layer type {strange_kind!r}", f"known: {', '.join(RATIOS.values())}")
    return stated


def _hashed(config: ConfigReader, layers: int) -> tuple[bool, ...]:
    """Which layers choose experts by the token: those that ``mlp_layer_types`` says, or the first."""
    first = config.integer("num_hash_layers", default=HASH_LAYERS, null=HASH_LAYERS, minimum=0)
    stated = config.texts("mlp_layer_types")
    if stated is None:
        return tuple(i < first for i in range(layers))
    if len(stated) != layers:
        config.fail("mlp_layer_types", f"mlp_layer_types names {len(stated)} layers, the model has {layers}")
    strange = next((t for t in stated if t not in (HASHED, "moe")), None)
    if strange is not None:
        config.fail("mlp_layer_types", f"unknown kind {strange!r} in mlp_layer_types", f"known: {HASHED}, moe")
    return tuple(t == HASHED for t in stated)


def _sizes(config: ConfigReader) -> Compressed:
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
    if config.text("scoring_func", default="sqrtsoftplus") != "sqrtsoftplus":
        config.fail("scoring_func", "memcheck has a model of the scores' square-rooted softplus alone")
    width = config.integer("moe_intermediate_size")
    return routed(
        hidden,
        (config.integer("n_routed_experts", "num_local_experts"), config.integer("num_experts_per_tok")),
        width,
        config.activation(),
        Shared(width),
        router="sqrt-softplus",
        correction_bias=True,
        clamp="act",
    )


def _connection(module: str, hidden: int, streams: int) -> tuple[ParameterTensor, ...]:
    """What makes the weights of ``DeepseekV4HyperConnection``: of the streams, of their mixture, of what is added."""
    width = (2 + streams) * streams
    return (
        ParameterTensor(f"{module}.fn", (width, streams * hidden), "mixer"),
        ParameterTensor(f"{module}.base", (width,), "mixer"),
        ParameterTensor(f"{module}.scale", (3,), "mixer"),
    )


def _attention_tensors(size: StackDimensions, compressor: Compressed) -> tuple[ParameterTensor, ...]:
    prefix, hidden, d = "self_attn.", size.hidden, size.head_dim
    heads = size.heads * d
    tensors = (
        *linear(prefix + "q_a_proj", compressor.query_rank, hidden, "attention", "none"),
        ParameterTensor(prefix + "q_a_norm.weight", (compressor.query_rank,), "norm"),
        *linear(prefix + "q_b_proj", heads, compressor.query_rank, "attention", "column"),
        *linear(prefix + "kv_proj", d, hidden, "attention", "none"),
        ParameterTensor(prefix + "kv_norm.weight", (d,), "norm"),
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
    tensors += _compressor(prefix + "compressor", hidden, d, compressor)
    if not compressor.index_heads:
        return tensors
    i = prefix + "compressor.indexer"
    chooser = (
        *_compressor(i, hidden, compressor.index_dim, compressor),
        *linear(
            i + ".q_b_proj", compressor.index_heads * compressor.index_dim, compressor.query_rank, "attention", "none"
        ),
        *linear(i + ".scorer.weights_proj", compressor.index_heads, hidden, "attention", "none"),
    )
    return tensors + tuple(t._replace(fixed=True) for t in chooser)


def _compressor(module: str, hidden: int, width: int, compressor: Compressed) -> tuple[ParameterTensor, ...]:
    both = 2 * width if compressor.index_heads else width
    return (
        *linear(f"{module}.kv_proj", both, hidden, "attention", "none"),
        *linear(f"{module}.gate_proj", both, hidden, "attention", "none"),
        ParameterTensor(f"{module}.position_bias", (compressor.rate, both), "attention"),
        ParameterTensor(f"{module}.kv_norm.weight", (width,), "norm"),
    )
