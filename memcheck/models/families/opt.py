"""OPT (modeling_opt.py): learned positions with two rows of padding, biases, ReLU."""

from __future__ import annotations

from memcheck.models.decoder import Projections, decoder, grouped_attention, linear, plain_mlp, read_sizes
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block, Norm, Paths

PROJECTIONS = Projections(output="out_proj")
PATHS = Paths("model.decoder.layers", "model.decoder.embed_tokens", "model.decoder.embed_positions", head="lm_head")
POSITION_OFFSET = 2
"""OPTLearnedPositionalEmbedding has two rows more than positions."""


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: opt``. OPT-350m has its norms after the sums and projects a narrower
    embedding.
    """
    size = read_sizes(config, kv_heads="none", head_dim_key=False, learned_positions=True)
    hidden = size.hidden
    config.ignore("layerdrop", "init_std", "activation_dropout")
    bias = config.flag("enable_bias", default=True)
    affine = config.flag("layer_norm_elementwise_affine", default=True)
    before = config.flag("do_layer_norm_before", default=True)
    dropout = config.dropout("attention_dropout")
    attention = grouped_attention(size, PROJECTIONS, qkv_bias=bias, out_bias=bias, rotary_dim=0, dropout=dropout)
    activation = config.activation("activation_function", "hidden_act", default="relu")
    width = config.integer("ffn_dim", "intermediate_size")
    mlp = plain_mlp(hidden, width, activation, "fc1", "fc2", bias=bias)._replace(inline=True)

    def norm(name: str) -> Norm:
        return Norm("layernorm", hidden, weight=affine, bias=affine, name=name)

    block = Block(
        mixer=attention,
        mlp=mlp,
        input_norm=norm("self_attn_layer_norm"),
        mlp_norm=norm("final_layer_norm"),
        residual="" if before else "post-norm",
        dropout=config.dropout("dropout", default=0.1),
    )
    last = before and not config.flag("_remove_final_layer_norm")
    narrow = config.integer("word_embed_proj_dim", default=hidden, null=hidden)
    project_out = linear("model.decoder.project_out", narrow, hidden, "embedding", "none")
    project_in = linear("model.decoder.project_in", hidden, narrow, "embedding", "none")
    return decoder(
        config,
        size,
        ((block, size.layers),),
        tied=True,
        rotary_dim=0,
        embedding_size=narrow,
        learned_positions=size.positions + POSITION_OFFSET,
        positions_each=True,
        extra_tensors=project_out + project_in if narrow != hidden else (),
        paths=PATHS,
    )._replace(final_norm=norm("model.decoder.final_layer_norm") if last else None)
