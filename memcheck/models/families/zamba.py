"""Zamba (modeling_zamba.py): Mamba's first mixer in every layer, in front of some a block that they share."""

from __future__ import annotations

from memcheck.models.families.mamba import read_scan
from memcheck.models.families.zamba2 import assemble, in_turn, kinds_of
from memcheck.models.parts.attention import Projections, grouped_attention
from memcheck.models.parts.decoder import rms_norm
from memcheck.models.parts.feed_forward import gated_mlp
from memcheck.models.parts.matrices import linear
from memcheck.models.parts.recurrent import mamba1_heads
from memcheck.models.parts.sizes import StackDimensions, read_sizes
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block

HARMLESS = (
    "attention_hidden_size", "attention_head_dim", "head_dim", "layer_types", "num_logits_to_keep", "time_step_floor",
    "time_step_max", "time_step_min", "use_associative_scan", "use_mamba_kernels",
)  # fmt: skip
"""Derived sizes, and what decides none: the associative scan runs under torch.compile alone."""
BLOCK = "shared_transf"


def read(config: ConfigReader) -> Architecture:
    """``model_type: zamba``."""
    size = read_sizes(config, head_dim_key=False)
    h = size.hidden
    every, first = config.integer("attn_layer_period", default=6), config.integer("attn_layer_offset", default=4)
    usual = ["linear_attention", "linear_attention", "hybrid"]
    usual += ["hybrid" if i % every == first else "linear_attention" for i in range(size.layers - 3)]
    types = kinds_of(config, size.layers, tuple(usual))
    wide = 2 * h
    for key, same in (("attention_hidden_size", wide), ("attention_head_dim", wide // size.heads)):
        if config.integer(key, default=same, null=same) != same:
            config.fail(key, f"{key} other than {same} has no memory model", "remove it")
    config.ignore(*HARMLESS)
    if config.activation("hidden_mamba_act", default="silu") != "silu":
        config.fail("hidden_mamba_act", "only silu has a memory model here")
    scan = read_scan(config, h)
    heads = config.integer("n_mamba_heads", default=2)
    if scan.inner % heads:
        config.fail("n_mamba_heads", f"{scan.inner} channels have no {heads} equal heads", "use a divisor")
    plain = Block(
        mixer=mamba1_heads(h, scan, heads, "mamba"), mlp=None, input_norm=rms_norm(h, "input_layernorm"), mlp_norm=None
    )
    hybrid = _hybrid(config, size)._replace(
        beside=mamba1_heads(h, scan, heads, "mamba_decoder.mamba"),
        mixer_output_norm=rms_norm(h, "mamba_decoder.input_layernorm"),
    )
    return assemble(config, size, in_turn(types, plain, hybrid, 1, types.count("hybrid")), rotary_dim=0)


def _hybrid(config: ConfigReader, size: StackDimensions) -> Block:
    """The one block, which reads the stream and the embedding side by side, and each layer's own matrix after it."""
    h, wide = size.hidden, size._replace(hidden=2 * size.hidden, head_dim=2 * size.hidden // size.heads)
    attention = grouped_attention(
        wide, Projections(module=f"{BLOCK}.self_attn"), rotary_dim=0, dropout=config.dropout("attention_dropout")
    )
    (output,) = linear(f"{BLOCK}.self_attn.o_proj", h, wide.heads * wide.head_dim, "attention", "row")
    activation = config.activation(default="gelu")
    return Block(
        mixer=attention._replace(tensors=(*attention.tensors[:3], output)),
        mlp=gated_mlp(h, config.integer("intermediate_size"), activation, module=f"{BLOCK}.feed_forward"),
        input_norm=rms_norm(2 * h, f"{BLOCK}.input_layernorm"),
        mlp_norm=rms_norm(h, f"{BLOCK}.pre_ff_layernorm"),
        extra_tensors=linear("linear", h, h, "mlp", "none"),
        in_turn=True,
    )
