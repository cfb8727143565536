"""LFM 2, dense and routed, and LFM 3 (modeling_lfm2.py, modeling_lfm2_moe.py, modeling_lfm3.py): short gated
convolutions, attention in between.
"""

from __future__ import annotations

from memcheck.models.decoder import (
    Projections,
    StackDimensions,
    decoder,
    grouped_attention,
    layer_types,
    linear,
    read_sizes,
    rms_norm,
    routed,
    stack,
    vector,
)
from memcheck.models.module_types import HALF, NORMALISED_SCORES
from memcheck.models.reader import ConfigReader
from memcheck.models.recurrent import generation_bytes
from memcheck.models.types import Architecture, Attention, Block, Mixer, Mlp, Moe, ParameterTensor

PROJECTIONS = Projections(output="out_proj")
LAYER_KINDS = ("conv", "full_attention")


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: lfm2``: short gated convolutions or attention, each with a gated MLP."""
    size = read_sizes(config, kv_heads="required")
    layer_kinds = _layer_kinds(config, size)
    mlp = _mlp(size.hidden, _mlp_width(config))
    return _assemble(config, size, tuple((t, mlp) for t in layer_kinds), _mixers(config, size))


def read_moe(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: lfm2_moe``: sigmoid experts after the first dense layers."""
    size = read_sizes(config, kv_heads="required")
    layer_kinds = _layer_kinds(config, size)
    dense = config.integer("num_dense_layers", default=2, minimum=0)
    mlp = _mlp(size.hidden, config.integer("intermediate_size"))
    experts = config.integer("num_experts", "num_local_experts")
    config.ignore("routed_scaling_factor")
    moe = routed(
        size.hidden,
        (experts, config.integer("num_experts_per_tok")),
        config.integer("moe_intermediate_size"),
        "silu",
        module="feed_forward",
        experts_first=True,
        router="sigmoid-logits",
        routing=NORMALISED_SCORES._replace(normalised=config.flag("norm_topk_prob", default=True)),
    )
    config.flag("use_expert_bias", default=True)
    layers = tuple((t, moe if i >= dense else mlp) for i, t in enumerate(layer_kinds))
    return _assemble(config, size, layers, _mixers(config, size))


def read_3(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: lfm3``: sliding-window layers, a gate for each head, and norms after both
    halves.

    Its convolution is always PyTorch's own: the causal-conv1d package has no kernel of its size.
    """
    size = read_sizes(config, kv_heads="required", head_dim=128)
    hidden, window = size.hidden, config.window()
    attention_gate = config.flag("use_attention_gate", default=True)
    output_norm = config.flag("use_sandwich_norm", default=True)
    bias = config.flag("attention_bias")
    layer_kinds = _layer_kinds_3(config, size.layers)
    attention = grouped_attention(
        size,
        qkv_bias=bias,
        out_bias=bias,
        query_norm=rms_norm(size.head_dim, "self_attn.q_norm"),
        key_norm=rms_norm(size.head_dim, "self_attn.k_norm"),
        rotation=HALF._replace(form="half-fp32"),
        gate_matrix="adaptable" if attention_gate else "",
        dropout=config.dropout("attention_dropout"),
        tensors=linear("self_attn.g_proj", size.heads, hidden, "attention", "column") if attention_gate else (),
    )
    mixers = _mixers(config, size, kernel=7)
    convolution = mixers["conv"]
    if isinstance(convolution, Mixer):
        mixers["conv"] = convolution._replace(kind="plain-short-convolution")
    mixers["full_attention"] = attention
    mixers["sliding_attention"] = attention._replace(window=window)
    mlp = _mlp(hidden, config.integer("intermediate_size"))
    architecture = _assemble(config, size, tuple((t, mlp) for t in layer_kinds), mixers)
    rotary_tables = len(set(layer_kinds) - {"conv"})
    if not output_norm:
        return architecture._replace(rotary_tables=rotary_tables)
    mixer_norm, mlp_norm = rms_norm(hidden, "post_operator_norm"), rms_norm(hidden, "post_ffn_norm")
    blocks = tuple(
        (b._replace(mixer_output_norm=mixer_norm, mlp_output_norm=mlp_norm), n) for b, n in architecture.blocks
    )
    return architecture._replace(blocks=blocks, rotary_tables=rotary_tables)


def _layer_kinds_3(config: ConfigReader, layers: int) -> tuple[str, ...]:
    """Read the kind of every layer of LFM 3: convolutions, with full or windowed attention in every second layer."""
    known = ("conv", "full_attention", "sliding_attention")

    def default_kind(i: int) -> str:
        """Return the default kind of layer ``i``."""
        if i % 4 == 2:
            return "full_attention"
        return "sliding_attention" if i and i % 4 == 0 else "conv"

    kinds = config.texts("layer_types") or tuple(default_kind(i) for i in range(layers))
    if len(kinds) != layers or set(kinds) - set(known):
        config.fail("layer_types", f"layer_types must name {layers} layers", f"known: {', '.join(known)}")
    return kinds


def _layer_kinds(config: ConfigReader, size: StackDimensions) -> tuple[str, ...]:
    """Read the kind of every layer, ``conv`` or ``full_attention``, from ``layer_types`` or ``full_attn_idxs``."""
    stated = config.integers("full_attn_idxs")
    attention_layers = frozenset(range(size.layers) if stated is None else stated)
    return layer_types(config, size.layers, lambda i: LAYER_KINDS[i in attention_layers], LAYER_KINDS)


def _mlp_width(config: ConfigReader) -> int:
    """Return the inner width of the MLP."""
    width = config.integer("intermediate_size", "block_ff_dim")
    factor = config.number("block_ffn_dim_multiplier", default=1.0)
    multiple = config.integer("block_multiple_of", default=256)
    if not config.flag("block_auto_adjust_ff_dim", default=True):
        return width
    width = int(factor * int(2 * width / 3))
    return -(-width // multiple) * multiple


def _mlp(hidden: int, width: int) -> Mlp:
    """Build the gated MLP ``w2(silu(w1(x)) * w3(x))`` of inner ``width``."""
    tensors = (
        *linear("feed_forward.w1", width, hidden, "mlp", "column"),
        *linear("feed_forward.w3", width, hidden, "mlp", "column"),
        *linear("feed_forward.w2", hidden, width, "mlp", "row"),
    )
    return Mlp(width, gated=True, activation="silu", tensors=tensors, bias=False)


def _mixers(config: ConfigReader, size: StackDimensions, kernel: int = 3) -> dict[str, Attention | Mixer]:
    """Build the mixer of each kind of layer: attention, or a gated short convolution over ``kernel`` tokens."""
    hidden, bias = size.hidden, config.flag("conv_bias")
    kernel = config.integer("conv_L_cache", default=kernel)
    attention = grouped_attention(
        size,
        PROJECTIONS,
        query_norm=rms_norm(size.head_dim, "self_attn.q_layernorm"),
        key_norm=rms_norm(size.head_dim, "self_attn.k_layernorm"),
    )
    tensors = (
        *linear("conv.in_proj", 3 * hidden, hidden, "mixer", "column", bias=bias),
        ParameterTensor("conv.conv.weight", (hidden, 1, kernel), "mixer", shard="column"),
        *((vector("conv.conv.bias", hidden, "mixer", "column"),) if bias else ()),
        *linear("conv.out_proj", hidden, hidden, "mixer", "row", bias=bias),
    )
    convolution = Mixer(
        kind="short-convolution",
        heads=hidden,
        head_dim=1,
        state_bytes_per_sequence=generation_bytes(convolution=hidden * kernel),
        width=3 * hidden,
        tensors=tensors,
        kernel=kernel,
        key_heads=0,
        key_dim=0,
        chunk=0,
    )
    return {"full_attention": attention, "conv": convolution}


def _assemble(
    config: ConfigReader,
    size: StackDimensions,
    layers: tuple[tuple[str, Mlp | Moe], ...],
    mixers: dict[str, Attention | Mixer],
) -> Architecture:
    """Build a decoder with tied embeddings.

    ``layers``: kind of mixer and feed-forward of each layer. ``mixers``: mixer by kind.
    """
    config.ignore("conv_dim", "conv_dim_out", "conv_use_xavier_init", "block_dim", "block_mlp_init_scale")
    config.ignore("block_out_init_scale", "block_use_swiglu", "block_use_xavier_init", "num_heads", "tie_embedding")
    config.ignore("block_norm_eps", "theta")
    hidden = size.hidden

    def build_layer(kind: tuple[str, Mlp | Moe]) -> Block:
        """Build one layer. ``kind``: its kind of mixer, and its feed-forward."""
        layer_kind, feed_forward = kind
        return Block(
            mixer=mixers[layer_kind],
            mlp=feed_forward,
            input_norm=rms_norm(hidden, "operator_norm"),
            mlp_norm=rms_norm(hidden, "ffn_norm"),
        )

    final_norm = rms_norm(hidden, "model.embedding_norm")
    return decoder(config, size, stack(layers, build_layer), tied=True, final_norm=final_norm)
