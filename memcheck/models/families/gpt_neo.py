"""GPT-Neo (modeling_gpt_neo.py): GPT-2 with a boolean mask in each layer, fp32 scores, and no biases on q, k and v."""

from __future__ import annotations

from memcheck.models.decoder import Names, Projections, grouped_attention, plain_mlp, read_sizes
from memcheck.models.families.gpt2 import SUMMARY, gpt2_block, gpt2_model
from memcheck.models.module_types import EAGER, KERNELS, HeldMask
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture

PROJECTIONS = Projections(output="out_proj", module="attn.attention")
NAMES = Names(
    layers=("num_layers", "num_hidden_layers"),
    heads=("num_heads", "num_attention_heads"),
)


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: gpt_neo``.

    Global and local layers take the same memory: local ones hold another mask of the same size. The layer
    is GPT-2's.
    """
    size = read_sizes(config, NAMES, kv_heads="none", head_dim_key=False, learned_positions=True)
    hidden = size.hidden
    config.ignore("attention_types", "attention_layers", "window_size", "classifier_dropout", "gradient_checkpointing")
    config.ignore(*SUMMARY)
    attention = grouped_attention(
        size,
        PROJECTIONS,
        out_bias=True,
        rotary_dim=0,
        kernels=KERNELS._replace(sdpa=False),  # GPT_NEO_ATTENTION_CLASSES: eager and flash alone
        eager=EAGER._replace(scores_fp32=True, returned=True),  # _attn: `query.to(torch.float32)`; returns its weights
        extension=HeldMask(size.positions),
        dropout=config.dropout("attention_dropout"),
    )
    width = config.optional_integer("intermediate_size") or 4 * hidden
    activation = config.activation("activation_function", "hidden_act", default="gelu_new")
    mlp = plain_mlp(hidden, width, activation, "mlp.c_fc", "mlp.c_proj", bias=True)
    block = gpt2_block(hidden, attention, mlp, config.dropout("resid_dropout"))
    return gpt2_model(config, size, block, config.dropout("embed_dropout"))
