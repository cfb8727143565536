"""GPT-Neo (modeling_gpt_neo.py): GPT-2 with a boolean mask in each layer, fp32 scores, and no biases on q, k and v."""

from __future__ import annotations

from memcheck.models.decoder import Names, Projections, decoder, grouped_attention, layer_norm, plain_mlp, read_sizes
from memcheck.models.module_types import EAGER, KERNELS, HeldMask
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block, LayerVariables, Paths

PROJECTIONS = Projections(output="out_proj", module="attn.attention")
NAMES = Names(
    layers=("num_layers", "num_hidden_layers"),
    heads=("num_heads", "num_attention_heads"),
)


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: gpt_neo``.

    Global and local layers take the same memory: local ones hold another mask of the same size. What the flags say is
    at the fields of :class:`FusedKernels`, :class:`EagerScores` and :class:`LayerVariables`.
    """
    size = read_sizes(config, NAMES, kv_heads="none", head_dim_key=False, learned_positions=True)
    hidden = size.hidden
    config.ignore("attention_types", "attention_layers", "window_size", "classifier_dropout", "gradient_checkpointing")
    config.ignore("summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type")
    config.ignore("summary_use_proj")
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
    block = Block(
        mixer=attention,
        mlp=plain_mlp(hidden, width, activation, "mlp.c_fc", "mlp.c_proj", bias=True),
        input_norm=layer_norm(hidden, "ln_1"),
        mlp_norm=layer_norm(hidden, "ln_2"),
        dropout=config.dropout("resid_dropout"),
        variables=LayerVariables(norm=False, output=True, mlp_input=True),  # of GPTNeoBlock.forward, as in GPT-2
        dropout_place="inner",
    )
    return decoder(
        config,
        size,
        ((block, size.layers),),
        tied=True,
        final_norm=layer_norm(hidden, "transformer.ln_f"),
        rotary_dim=0,
        learned_positions=size.positions,
        embedding_dropout=config.dropout("embed_dropout"),
        paths=Paths("transformer.h", "transformer.wte", "transformer.wpe", head="lm_head"),
    )
