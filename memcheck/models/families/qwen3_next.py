"""Qwen 3 Next (modeling_qwen3_next.py): gated delta nets, every fourth layer softmax attention with an output gate."""

from __future__ import annotations

from memcheck.models.families.qwen_moe import sparse_layers
from memcheck.models.parts.attention import Projections, grouped_attention, head_norm
from memcheck.models.parts.decoder import decoder, pre_norm_block, rms_norm
from memcheck.models.parts.feed_forward import Shared, gated_mlp, routed
from memcheck.models.parts.matrices import linear, vector
from memcheck.models.parts.sizes import read_sizes
from memcheck.models.parts.stack import layer_types, stack
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block, Mixer, Mlp, Moe, ParameterTensor

NORM = "rmsnorm-unit-offset"
GATED = Projections(output_gate=True)


def read(config: ConfigReader) -> Architecture:
    """``model_type: qwen3_next``."""
    size = read_sizes(config, kv_heads="required", head_dim=256)
    h, bias = size.hidden, config.flag("attention_bias")
    attention = grouped_attention(
        size,
        GATED,
        qkv_bias=bias,
        out_bias=bias,
        rotary_dim=int(size.head_dim * config.rotary_fraction(0.25)),
        query_norm=head_norm(NORM, size.head_dim, "q"),
        key_norm=head_norm(NORM, size.head_dim, "k"),
        dropout=config.dropout("attention_dropout"),
    )
    period = config.integer("full_attention_interval", default=4, null=4)
    types = layer_types(config, size.layers, lambda i: "linear_attention" if (i + 1) % period else "full_attention")
    sparse = sparse_layers(config, size.layers)
    activation = config.activation()
    moe = routed(
        h,
        (config.integer("num_experts"), config.integer("num_experts_per_tok")),
        config.integer("moe_intermediate_size"),
        activation,
        Shared(config.integer("shared_expert_intermediate_size"), "shared_expert", gate=True),
        normalised_scores=config.flag("norm_topk_prob", default=True),
        stacked_adapters=True,
    )
    width = config.raw("intermediate_size") if all(sparse) else config.integer("intermediate_size")
    linear_mixer = _delta_net(config, h)

    def make(kind: tuple[str, bool]) -> Block:
        mlp: Mlp | Moe = moe if kind[1] else gated_mlp(h, width, activation)._replace(adaptable=False)
        mixer = linear_mixer if kind[0] == "linear_attention" else attention
        return pre_norm_block(h, mixer, mlp, kind=NORM)

    return decoder(
        config,
        size,
        stack(zip(types, sparse, strict=True), make),
        tied=False,
        final_norm=rms_norm(h, "model.norm", NORM),
        rotary_dim=attention.rotary_dim,
    )


def _delta_net(config: ConfigReader, hidden: int) -> Mixer:
    """Gated delta net: a key_dim x value_dim matrix per value head, and the convolution's last columns."""
    key_heads, value_heads = config.integer("linear_num_key_heads"), config.integer("linear_num_value_heads")
    key_dim, value_dim = config.integer("linear_key_head_dim"), config.integer("linear_value_head_dim")
    kernel = config.integer("linear_conv_kernel_dim", default=4)
    keys, values, a = key_heads * key_dim, value_heads * value_dim, "linear_attn"
    convolved = 2 * keys + values
    tensors = (
        *linear(f"{a}.in_proj_qkvz", 2 * keys + 2 * values, hidden, "mixer", "column"),
        *linear(f"{a}.in_proj_ba", 2 * value_heads, hidden, "mixer", "column"),
        ParameterTensor(f"{a}.conv1d.weight", (convolved, 1, kernel), "mixer", shard="column"),
        vector(f"{a}.dt_bias", value_heads, "mixer", "column"),
        vector(f"{a}.A_log", value_heads, "mixer", "column"),
        vector(f"{a}.norm.weight", value_dim, "norm"),
        *linear(f"{a}.out_proj", hidden, values, "mixer", "row"),
    )
    kept = value_heads * key_dim * value_dim * 4 + convolved * kernel * 2
    return Mixer(
        kind="gated-delta-net",
        heads=value_heads,
        head_dim=value_dim,
        state_bytes_per_sequence=kept,
        width=2 * keys + 2 * values,
        tensors=tensors,
    )
