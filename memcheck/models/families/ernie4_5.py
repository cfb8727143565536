"""ERNIE 4.5, dense and routed (modeling_ernie4_5.py, modeling_ernie4_5_moe.py): pairs are rotated in fp32."""

from __future__ import annotations

from memcheck.models.decoder import (
    StackDimensions,
    decoder,
    gated_mlp,
    grouped_attention,
    pre_norm_block,
    read_sizes,
    routed,
    stack,
    with_correction,
)
from memcheck.models.module_types import HALF, NORMALISED_SCORES, SharedExperts
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Attention, Block, Fp32Params

WIDE = (".gate.",)
"""``_keep_in_fp32_modules_strict`` of the class, whose gates are fp32 as they are made, too."""
KINDS = 2
"""Kinds of tokens: those of text, and those of pictures."""


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: ernie4_5``."""
    size = read_sizes(config, kv_heads="required", head_dim=128)
    attention, bias = _attention(config, size)
    mlp = gated_mlp(size.hidden, config.integer("intermediate_size"), config.activation(), bias=bias)
    return decoder(config, size, ((pre_norm_block(size.hidden, attention, mlp), size.layers),), tied=True)


def read_paddle(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: paddleocr_vl_text``: ERNIE 4.5 with halves of heads rotated in their own
    dtype.
    """
    size = read_sizes(config, kv_heads="required", head_dim=128)
    bias = config.flag("use_bias")
    attention = grouped_attention(size, qkv_bias=bias, out_bias=bias)
    mlp = gated_mlp(size.hidden, config.integer("intermediate_size"), config.activation(), bias=bias)
    return decoder(config, size, ((pre_norm_block(size.hidden, attention, mlp), size.layers),), tied=True)


def read_moe(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: ernie4_5_moe``: fp32 softmax router with a correction bias per expert,
    shared experts first.
    """
    size = read_sizes(config, kv_heads="required")
    hidden = size.hidden
    attention, bias = _attention(config, size)
    config.ignore("moe_norm_min")
    width, activation = config.integer("moe_intermediate_size"), config.activation()
    experts = config.integer("moe_num_experts", "num_experts")
    moe = routed(
        hidden,
        (experts, config.integer("moe_k", "num_experts_per_tok")),
        width,
        activation,
        SharedExperts(config.integer("moe_num_shared_experts", minimum=0, null=0) * width, gate=False, runs_first=True),
        router="softmax-gather",
        routing=NORMALISED_SCORES._replace(input_fp32=True),
    )
    if bias:
        config.fail("use_bias", "use_bias of a routed model is not modelled: no released one has it")
    moe = with_correction(moe, "mlp.gate.moe_statics.e_score_correction_bias", (1, experts))
    mlp = gated_mlp(hidden, config.integer("intermediate_size"), activation)
    first = config.integer("moe_layer_start_index", default=1, minimum=0)
    last = config.integer("moe_layer_end_index", default=-1, minimum=-1)
    moe_interval = config.integer("moe_layer_interval", default=1)
    last = size.layers - 1 if last == -1 else last

    def build_layer(sparse: bool) -> Block:
        return pre_norm_block(hidden, attention, moe if sparse else mlp)

    kinds = ((i + 1) % moe_interval == 0 and first <= i <= last for i in range(size.layers))
    return decoder(config, size, stack(kinds, build_layer), tied=True, fp32_params=Fp32Params(always=WIDE, of_fp16=()))


def _attention(config: ConfigReader, size: StackDimensions) -> tuple[Attention, bool]:
    """Return the attention, and whether every matrix of a layer has a bias."""
    bias = config.flag("use_bias")
    attention = grouped_attention(
        size,
        qkv_bias=bias,
        out_bias=bias,
        rotation=HALF._replace(form="pairs-wide", interleaved=True),
    )
    return attention, bias
