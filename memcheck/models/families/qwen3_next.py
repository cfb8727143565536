"""Qwen 3 Next and 3.5 (modeling_qwen3_next.py, modeling_qwen3_5.py, modeling_qwen3_5_moe.py): gated delta nets, every
fourth layer softmax attention with an output gate.
"""

from __future__ import annotations

from memcheck.models.decoder import (
    Projections,
    StackDimensions,
    decoder,
    gated_mlp,
    head_norms,
    layer_types,
    linear,
    pre_norm_block,
    read_attention,
    read_sizes,
    rms_norm,
    routed,
    stack,
    vector,
)
from memcheck.models.families.deepseek import note_mtp_layers
from memcheck.models.families.qwen_moe import layers_with_experts
from memcheck.models.module_types import NORMALISED_SCORES, SharedExperts
from memcheck.models.reader import ConfigReader
from memcheck.models.recurrent import generation_bytes
from memcheck.models.types import Architecture, Block, Mixer, Mlp, Moe, ParameterTensor
from memcheck.record import Record

NORM = "rmsnorm-unit-offset"
GATED = Projections(output_gate=True)


class DeltaStyle(Record):
    """The input projections of a delta net, in the order of its forward pass."""

    inputs: tuple[str, ...]
    output_first: bool = False
    """The class makes its norm and its output's matrix before them."""


QWEN3_NEXT = DeltaStyle(("qkvz", "ba"))
QWEN3_5 = DeltaStyle(("qkv", "z", "b", "a"), output_first=True)


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: qwen3_next``: two joint projections in front of each delta net."""
    size = read_sizes(config, kv_heads="required", head_dim=256)
    hidden = size.hidden
    moe_layers = layers_with_experts(config, size.layers)
    moe = _moe(config, hidden, normalised=config.flag("norm_topk_prob", default=True))
    intermediate_size = config.raw("intermediate_size") if all(moe_layers) else config.integer("intermediate_size")
    mlp = None if all(moe_layers) else gated_mlp(hidden, intermediate_size, moe.activation)
    feed_forwards = tuple(moe if routed or mlp is None else mlp for routed in moe_layers)
    return _assemble(config, size, feed_forwards, delta_net(config, hidden, QWEN3_NEXT))


def read_3_5(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: qwen3_5_text``: a dense network in every layer."""
    size = read_sizes(config, kv_heads="required", head_dim=256)
    mlp = gated_mlp(size.hidden, config.integer("intermediate_size"), config.activation())
    note_qwen_mtp_layers(config)
    return _assemble(config, size, (mlp,) * size.layers, delta_net(config, size.hidden, QWEN3_5))


def read_3_5_moe(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: qwen3_5_moe_text``: experts and a gated shared one in every layer."""
    size = read_sizes(config, kv_heads="required", head_dim=256)
    config.ignore("intermediate_size", "mlp_only_layers", "decoder_sparse_step")
    note_qwen_mtp_layers(config)
    moe = _moe(config, size.hidden, normalised=True)
    return _assemble(config, size, (moe,) * size.layers, delta_net(config, size.hidden, QWEN3_5))


def note_qwen_mtp_layers(config: ConfigReader) -> None:
    """Note the multi-token-prediction layers that Qwen 3.5's files name. transformers does not build them."""
    config.ignore("mtp_use_dedicated_embeddings", "attn_output_gate", "mamba_ssm_dtype", "mlp_only_layers")
    note_mtp_layers(config, ("mtp_num_hidden_layers",))


def _moe(config: ConfigReader, hidden: int, *, normalised: bool) -> Moe:
    """Build routed experts and one shared expert, whose output a sigmoid gate scales. ``normalised``: top-k scores are
    made to sum to 1.
    """
    return routed(
        hidden,
        (config.integer("num_experts"), config.integer("num_experts_per_tok")),
        config.integer("moe_intermediate_size"),
        config.activation(),
        SharedExperts(config.integer("shared_expert_intermediate_size"), gate=True, runs_first=False),
        names=("gate", "shared_expert"),
        routing=NORMALISED_SCORES._replace(normalised=normalised),
    )


def _assemble(
    config: ConfigReader, size: StackDimensions, feed_forwards: tuple[Mlp | Moe, ...], linear_mixer: Mixer
) -> Architecture:
    """Build a decoder with full attention in every ``full_attention_interval``-th layer, and gated delta nets in the
    others.

    ``feed_forwards``: one per layer. ``linear_mixer``: the gated delta net.
    """
    hidden = size.hidden
    attention = read_attention(
        config,
        size,
        GATED,
        rotary_dim=int(size.head_dim * config.rotary_fraction(0.25)),
        **head_norms(NORM, size.head_dim),
    )
    period = config.integer("full_attention_interval", default=4, null=4)
    layer_kinds = layer_types(
        config, size.layers, lambda i: "linear_attention" if (i + 1) % period else "full_attention"
    )

    def build_layer(kind: tuple[str, Mlp | Moe]) -> Block:
        """Build one layer. ``kind``: ``linear_attention`` or ``full_attention``, and its feed-forward."""
        attention_type, feed_forward = kind
        mixer = linear_mixer if attention_type == "linear_attention" else attention
        return pre_norm_block(hidden, mixer, feed_forward, kind=NORM)

    return decoder(
        config,
        size,
        stack(zip(layer_kinds, feed_forwards, strict=True), build_layer),
        tied=False,
        final_norm=rms_norm(hidden, "model.norm", NORM),
        rotary_dim=attention.rotary_dim,
    )


def delta_net(config: ConfigReader, hidden: int, style: DeltaStyle) -> Mixer:
    """Build a gated delta net. ``style``: which input projections it has, and their order among its tensors.

    For generation, each sequence keeps a state of [value heads, key_dim, value_dim] in fp32, and the convolution's last
    inputs in 16 bits.
    """
    key_heads, value_heads = config.integer("linear_num_key_heads"), config.integer("linear_num_value_heads")
    key_dim, value_dim = config.integer("linear_key_head_dim"), config.integer("linear_value_head_dim")
    kernel = config.integer("linear_conv_kernel_dim", default=4)
    keys, values, module = key_heads * key_dim, value_heads * value_dim, "linear_attn"
    conv_channels = 2 * keys + values
    widths = {"qkvz": 2 * keys + 2 * values, "qkv": conv_channels, "z": values, "ba": 2 * value_heads}
    inputs: tuple[ParameterTensor, ...] = ()
    for name in style.inputs:
        inputs += _input_projection(module, name, widths.get(name, value_heads), hidden)
    output = (
        vector(f"{module}.norm.weight", value_dim, "norm"),
        *linear(f"{module}.out_proj", hidden, values, "mixer", "row"),
    )
    tensors = (
        vector(f"{module}.dt_bias", value_heads, "mixer", "column"),
        vector(f"{module}.A_log", value_heads, "mixer", "column"),
        ParameterTensor(f"{module}.conv1d.weight", (conv_channels, 1, kernel), "mixer", shard="column"),
        *(output + inputs if style.output_first else inputs + output),
    )
    state_bytes = generation_bytes(state=values * key_dim, convolution=conv_channels * kernel)
    return Mixer(
        kind="gated-delta-net",
        heads=value_heads,
        head_dim=value_dim,
        state_bytes_per_sequence=state_bytes,
        width=2 * keys + 2 * values,
        tensors=tensors,
        key_heads=key_heads,
        key_dim=key_dim,
        kernel=kernel,
        chunk=0,
    )


def _input_projection(module: str, name: str, width: int, hidden: int) -> tuple[ParameterTensor, ...]:
    """One input projection of a delta net: [width, hidden]."""
    return linear(f"{module}.in_proj_{name}", width, hidden, "mixer", "column")
