"""GPT-2, and Megatron's GPT of its shape (modeling_gpt2.py): learned positions, biases, LayerNorm, GELU, dropout."""

from __future__ import annotations

from memcheck.models.decoder import (
    GPT2_NAMES,
    Projections,
    StackDimensions,
    decoder,
    grouped_attention,
    layer_norm,
    plain_mlp,
    read_sizes,
)
from memcheck.models.module_types import EAGER, Gpt2Attention
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Attention, Block, LayerVariables, Mlp, Paths

CONV1D = Projections(("c_attn",), "c_proj", "attn", transposed=True)

SUMMARY = (
    "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout",
)  # fmt: skip
"""Keys of a head for several choices, which no class here has."""


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: gpt2``. Dropout is 0.1 unless stated, as in the class."""
    size = read_sizes(config, GPT2_NAMES, kv_heads="none", head_dim_key=False, learned_positions=True)
    hidden = size.hidden
    residual = config.dropout("resid_pdrop", default=0.1)
    attention = grouped_attention(
        size,
        CONV1D,
        qkv_bias=True,
        out_bias=True,
        rotary_dim=0,
        eager=EAGER._replace(softmax_fp32=False),
        dropout=config.dropout("attn_pdrop", default=0.1),
    )
    attention = Gpt2Attention(*attention)
    width = config.optional_integer("n_inner", "intermediate_size") or 4 * hidden
    activation = config.activation("activation_function", "hidden_act", default="gelu_new")
    mlp = plain_mlp(hidden, width, activation, "mlp.c_fc", "mlp.c_proj", bias=True, transposed=True)
    config.ignore("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "n_ctx", *SUMMARY)
    return gpt2_model(
        config, size, gpt2_block(hidden, attention, mlp, residual), config.dropout("embd_pdrop", default=0.1)
    )


def gpt2_block(hidden: int, attention: Attention, mlp: Mlp, dropout: float) -> Block:
    """Build GPT2Block, whose forward has variables for attention's output and for what the network reads.

    ``dropout``: of both halves, in their last statement, whose arguments live until then.
    """
    return Block(
        mixer=attention,
        mlp=mlp,
        input_norm=layer_norm(hidden, "ln_1"),
        mlp_norm=layer_norm(hidden, "ln_2"),
        dropout=dropout,
        dropout_place="inner",
        lives_to_forward_end=LayerVariables(input_norm_output=False, mixer_output=True, mlp_input=True),
    )


def gpt2_model(config: ConfigReader, size: StackDimensions, block: Block, embedding_dropout: float) -> Architecture:
    """Build a decoder of equal layers with GPT-2's module paths and learned positions."""
    return decoder(
        config,
        size,
        ((block, size.layers),),
        tied=True,
        final_norm=layer_norm(size.hidden, "transformer.ln_f"),
        rotary_dim=0,
        learned_positions=size.positions,
        embedding_dropout=embedding_dropout,
        paths=Paths("transformer.h", "transformer.wte", "transformer.wpe", head="lm_head"),
    )
