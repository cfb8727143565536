"""GPT-J (modeling_gptj.py): parallel halves after one norm, interleaved rotary embedding, fp32 scores."""

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
from memcheck.models.families.gpt2 import SUMMARY
from memcheck.models.module_types import EAGER, HALF, KERNELS, PositionTable
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block, Paths

PROJECTIONS = Projections(output="out_proj", module="attn")


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: gptj``: biases in the feed-forward network and on the head, none in
    attention.
    """
    size = read_sizes(config, GPT2_NAMES, kv_heads="none", head_dim_key=False)
    hidden = size.hidden
    config.ignore("scale_attn_weights", "gradient_checkpointing", "rotary", *SUMMARY)
    attention = grouped_attention(
        size,
        PROJECTIONS,
        rotary_dim=config.integer("rotary_dim", default=64, null=size.head_dim),
        rotation=HALF._replace(interleaved=True, form="pairs-each", named=True),
        kernels=KERNELS._replace(sdpa=False),
        eager=EAGER._replace(returned=True, scores_fp32=True),
        extension=PositionTable(size.positions),
        dropout=config.dropout("attn_pdrop"),
    )
    width = config.optional_integer("n_inner", "intermediate_size") or 4 * hidden
    activation = config.activation("activation_function", "hidden_act", default="gelu_new")
    mlp = plain_mlp(hidden, width, activation, "mlp.fc_in", "mlp.fc_out", bias=True)
    dropout = config.dropout("resid_pdrop")
    block = Block(
        mixer=attention, mlp=mlp, input_norm=layer_norm(hidden, "ln_1"), mlp_norm=None, parallel=True, dropout=dropout
    )
    return decoder(
        config,
        size,
        ((block, size.layers),),
        tied=False,
        final_norm=layer_norm(hidden, "transformer.ln_f"),
        rotary_dim=attention.rotary_dim,
        rotary_tables=0,
        head_bias=True,
        embedding_dropout=config.dropout("embd_pdrop"),
        paths=Paths("transformer.h", "transformer.wte", positions="", head="lm_head"),
    )
