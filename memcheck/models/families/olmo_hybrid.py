"""OLMo's hybrids (modeling_olmo_hybrid.py): gated delta nets with norms in front, attention with norms after it."""

from __future__ import annotations

from itertools import chain

from memcheck.models.decoder import (
    decoder,
    gated_mlp,
    head_norm,
    layer_types,
    linear,
    pre_norm_block,
    read_attention,
    read_sizes,
    rms_norm,
    stack,
    vector,
)
from memcheck.models.module_types import HALF, DoubledBetaMixer
from memcheck.models.reader import ConfigReader
from memcheck.models.recurrent import generation_bytes
from memcheck.models.types import Architecture, Block, Mixer, ParameterTensor

NORM = "rmsnorm-fp32-weight"


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: olmo_hybrid``: gated delta nets, with attention in every fourth layer."""
    size = read_sizes(config)
    hidden = size.hidden
    rope_parameters = config.raw("rope_parameters")
    rope_theta = rope_parameters.get("rope_theta") if isinstance(rope_parameters, dict) else config.raw("rope_theta")
    attention = read_attention(
        config,
        size,
        rotary_dim=0 if rope_theta is None else None,
        query_norm=head_norm(NORM, size.heads * size.head_dim, "q"),
        key_norm=head_norm(NORM, size.kv_heads * size.head_dim, "k"),
        rotation=HALF._replace(form="half-fp32"),
    )
    layer_kinds = layer_types(config, size.layers, lambda i: "linear_attention" if (i + 1) % 4 else "full_attention")
    mixer = _delta_net(config, hidden)
    mlp = gated_mlp(hidden, config.integer("intermediate_size"), config.activation())

    def build_layer(kind: str) -> Block:
        """Build one layer: a gated delta net with norms before its halves, or attention with norms after them."""
        if kind == "linear_attention":
            return pre_norm_block(hidden, mixer, mlp, kind=NORM)
        return Block(
            mixer=attention,
            mlp=mlp,
            input_norm=None,
            mlp_norm=None,
            mixer_output_norm=rms_norm(hidden, "post_attention_layernorm", NORM),
            mlp_output_norm=rms_norm(hidden, "post_feedforward_layernorm", NORM),
        )

    final_norm = rms_norm(hidden, "model.norm", NORM)
    return decoder(
        config,
        size,
        stack(layer_kinds, build_layer),
        tied=False,
        final_norm=final_norm,
        rotary_dim=attention.rotary_dim,
    )


def _delta_net(config: ConfigReader, hidden: int) -> Mixer:
    """Build a gated delta net with six separate input projections, and one causal convolution over q, k and v."""
    config.ignore("linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max", "linear_dt_init_floor")
    config.ignore("linear_use_gate")
    key_heads, value_heads = config.integer("linear_num_key_heads"), config.integer("linear_num_value_heads")
    key_dim, value_dim = config.integer("linear_key_head_dim"), config.integer("linear_value_head_dim")
    kernel = config.integer("linear_conv_kernel_dim", default=4)
    keys, values, module = key_heads * key_dim, value_heads * value_dim, "linear_attn"
    conv_channels = 2 * keys + values
    widths = {"q": keys, "k": keys, "v": values, "a": value_heads, "b": value_heads, "g": values}
    projections = [linear(f"{module}.{name}_proj", width, hidden, "mixer", "column") for name, width in widths.items()]
    tensors = (
        *chain.from_iterable(projections),
        ParameterTensor(f"{module}.conv1d.weight", (conv_channels, 1, kernel), "mixer", shard="column"),
        vector(f"{module}.dt_bias", value_heads, "mixer", "column"),
        vector(f"{module}.A_log", value_heads, "mixer", "column"),
        vector(f"{module}.o_norm.weight", value_dim, "norm"),
        *linear(f"{module}.o_proj", hidden, values, "mixer", "row"),
    )
    doubles_beta = config.flag("linear_allow_neg_eigval", default=True)
    mixer_type = DoubledBetaMixer if doubles_beta else Mixer
    return mixer_type(
        kind="gated-delta-net",
        heads=value_heads,
        head_dim=value_dim,
        state_bytes_per_sequence=generation_bytes(state=values * key_dim, convolution=conv_channels * kernel),
        width=2 * keys + 2 * values,
        tensors=tensors,
        key_heads=key_heads,
        key_dim=key_dim,
        kernel=kernel,
        chunk=0,
        output="o_proj",
    )
