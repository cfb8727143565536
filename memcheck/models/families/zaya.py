"""ZAYA (modeling_zaya.py): attention between compressed convolutions, scaled sums in fp32, one expert for each token by
a network whose state goes from layer to layer.
"""

from __future__ import annotations

from memcheck.models.parts.decoder import decoder, rms_norm
from memcheck.models.parts.feed_forward import routed
from memcheck.models.parts.matrices import linear, vector
from memcheck.models.parts.sizes import StackDimensions, read_sizes
from memcheck.models.parts.stack import layer_types, stack
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Attention, Block, Handed, Moe, ParameterTensor

FULL, SLIDING = "hybrid", "hybrid_sliding"
SHARE = 0.5
SKIPPING = "tokens that the router sends to no expert are counted with those of the first, as the class has them"


def read(config: ConfigReader) -> Architecture:
    """``model_type: zaya``."""
    size = read_sizes(config, kv_heads="required", head_dim=128)
    h, window = size.hidden, config.window()
    types = _types(config, size.layers, window)
    attention = _attention(config, size)
    moe = _experts(config, h)
    width = config.integer("router_hidden_size", default=256)
    config.note(SKIPPING)

    def make(kind: tuple[str, Handed]) -> Block:
        first = kind[1].first
        mixer = attention._replace(window=window if kind[0] == SLIDING else None)
        return Block(
            mixer=mixer,
            mlp=moe._replace(tensors=(*_router(moe.experts, h, width, first=first), *moe.tensors[1:])),
            input_norm=rms_norm(h, "input_layernorm"),
            mlp_norm=rms_norm(h, "post_attention_layernorm"),
            extra_tensors=_vectors(h, first=first),
            handed=kind[1],
            residual_fp32=True,
        )

    each = [Handed(width, first=i == 0, last=i == size.layers - 1) for i in range(size.layers)]
    turned = int(size.head_dim * _share(config, types))
    found = decoder(
        config,
        size,
        stack(zip(types, each, strict=True), make),
        tied=True,
        rotary_dim=turned,
        final_norm=rms_norm(h, "model.norm", "rmsnorm-narrow"),
        head_bias=config.flag("lm_head_bias"),
    )
    return found._replace(rotary_tables=len(set(types)))


def _types(config: ConfigReader, layers: int, window: int | None) -> tuple[str, ...]:
    types = layer_types(config, layers, lambda i: FULL, (FULL, SLIDING))
    if SLIDING in types and window is None:
        config.integer("sliding_window")
    return types


def _share(config: ConfigReader, types: tuple[str, ...]) -> float:
    """``partial_rotary_factor`` of the kinds of layers, which have to agree."""
    every = config.raw("rope_parameters")
    found = set()
    for kind in set(types):
        own = every.get(kind) if isinstance(every, dict) else None
        share = own.get("partial_rotary_factor", 1.0) if isinstance(own, dict) else SHARE
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0.0 < share <= 1.0:
            config.fail("rope_parameters", f"partial_rotary_factor of {kind} layers is not a share of 1")
        found.add(float(share))
    if len(found) > 1:
        config.fail("rope_parameters", "kinds of layers turn different shares of a head", "state one share for both")
    return found.pop()


def _attention(config: ConfigReader, size: StackDimensions) -> Attention:
    bias, a, d, h = config.flag("attention_bias"), "self_attn.", size.head_dim, size.hidden
    queries, keys = size.heads * d, size.kv_heads * d
    if keys % 2:
        config.fail("head_dim", f"{keys} channels of values cannot be halved", "use an even number")
    p, channels = a + "qkv_proj.", queries + keys
    kernels = config.integer("cca_time0", default=2), config.integer("cca_time1", default=2)
    tensors = (
        *linear(a + "o_proj", h, queries, "attention", "row", bias=bias),
        *linear(p + "q_proj", queries, h, "attention", "column", bias=bias),
        *linear(p + "k_proj", keys, h, "attention", "column", bias=bias),
        *linear(p + "v_proj_current", keys // 2, h, "attention", "column", bias=bias),
        *linear(p + "v_proj_delayed", keys // 2, h, "attention", "column", bias=bias),
        ParameterTensor(p + "conv_qk_depthwise.weight", (channels, 1, kernels[0]), "attention"),
        vector(p + "conv_qk_depthwise.bias", channels, "attention"),
        ParameterTensor(p + "conv_qk_grouped.weight", (channels, d, kernels[1]), "attention"),
        vector(p + "conv_qk_grouped.bias", channels, "attention"),
        vector(a + "qk_norm.temp", size.kv_heads, "attention"),
    )
    return Attention(
        heads=size.heads,
        kv_heads=size.kv_heads,
        head_dim=d,
        qkv_bias=bias,
        out_bias=bias,
        rotary_dim=int(d * _share(config, _types(config, size.layers, config.window()))),
        dropout=config.dropout("attention_dropout"),
        tensors=tensors,
    )


def _experts(config: ConfigReader, hidden: int) -> Moe:
    chosen = config.integer("num_experts_per_tok", default=1)
    if chosen != 1:
        config.fail("num_experts_per_tok", "the class routes each token to one expert", "write 1")
    width = config.integer("moe_intermediate_size")
    return routed(hidden, (config.integer("num_experts"), 1), width, config.activation(), router="handed")


def _router(experts: int, hidden: int, width: int, *, first: bool) -> tuple[ParameterTensor, ...]:
    """ZayaRouter, whose last class is to skip the experts."""
    g = "mlp.gate."
    scale = () if first else (vector(g + "router_states_scale", width, "router"),)
    return (
        *scale,
        *linear(g + "down_proj", width, hidden, "router", "none", bias=True),
        vector(g + "router_mlp.norm.weight", width, "norm"),
        *linear(g + "router_mlp.fc1", width, width, "router", "none", bias=True),
        *linear(g + "router_mlp.fc2", width, width, "router", "none", bias=True),
        *linear(g + "router_mlp.out_proj", experts + 1, width, "router", "none"),
    )


def _vectors(hidden: int, *, first: bool) -> tuple[ParameterTensor, ...]:
    names = [
        f"post_{half}_residual_scale.{part}_{what}"
        for half in ("attention", "mlp")
        for part, what in (
            ("hidden_states", "scale"),
            ("hidden_states", "bias"),
            ("residual", "scale"),
            ("residual", "bias"),
        )
    ]
    if first:  # the model's own, in front of its layers
        names += ["input_hidden_states_scale", "input_hidden_states_bias"]
    return tuple(vector(name, hidden, "norm") for name in names)
