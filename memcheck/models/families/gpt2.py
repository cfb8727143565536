"""GPT-2, and Megatron's GPT of its shape (modeling_gpt2.py): learned positions, biases, LayerNorm, GELU, dropout."""

from __future__ import annotations

from memcheck.models.decoder import (
    GPT2_NAMES,
    Projections,
    decoder,
    grouped_attention,
    layer_norm,
    plain_mlp,
    read_sizes,
)
from memcheck.models.module_types import EAGER, Gpt2Attention
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block, LayerVariables, Paths

CONV1D = Projections(("c_attn",), "c_proj", "attn", transposed=True)


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
    block = Block(
        mixer=attention,
        mlp=mlp,
        input_norm=layer_norm(hidden, "ln_1"),
        mlp_norm=layer_norm(hidden, "ln_2"),
        dropout=residual,
    )
    block = block._replace(variables=LayerVariables(norm=False, output=True, mlp_input=True), dropout_place="inner")
    config.ignore(
        "scale_attn_weights",
        "scale_attn_by_inverse_layer_idx",
        "reorder_and_upcast_attn",
        "summary_type",
        "n_ctx",
        "summary_use_proj",
        "summary_activation",
        "summary_proj_to_labels",
        "summary_first_dropout",
    )
    return decoder(
        config,
        size,
        ((block, size.layers),),
        tied=True,
        final_norm=layer_norm(hidden, "transformer.ln_f"),
        rotary_dim=0,
        learned_positions=size.positions,
        embedding_dropout=config.dropout("embd_pdrop", default=0.1),
        paths=Paths("transformer.h", "transformer.wte", "transformer.wpe", head="lm_head"),
    )
