"""GTE (modeling_gte.py): an encoder with rotary embeddings and a gated network, each sum normed behind it."""

from __future__ import annotations

from memcheck.models.parts.attention import Projections, grouped_attention
from memcheck.models.parts.decoder import decoder, layer_norm
from memcheck.models.parts.matrices import linear, norm_tensors
from memcheck.models.parts.sizes import read_sizes
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block, Mlp, ParameterTensor, Paths


def read(config: ConfigReader) -> Architecture:
    """``model_type: gte``: with a head for masked words."""
    size = read_sizes(config, kv_heads="none")
    h = size.hidden
    hidden = config.dropout("hidden_dropout_prob", default=0.1)
    types = config.integer("type_vocab_size", default=1, minimum=0)
    attention = grouped_attention(
        size,
        Projections(),
        qkv_bias=True,
        out_bias=True,
        dropout=config.dropout("attention_probs_dropout_prob"),
        bidirectional=True,
        softmax_fp32=False,
    )
    width, activation = config.integer("intermediate_size"), config.activation(default="gelu")
    mlp = Mlp(
        width,
        True,
        activation,
        tensors=(
            *linear("mlp.gate_proj", width, h, "mlp", "column"),
            *linear("mlp.up_proj", width, h, "mlp", "column"),
            *linear("mlp.down_proj", h, width, "mlp", "row", bias=True),
        ),
        down_bias=True,
        inner_dropout=hidden,
    )
    block = Block(
        mixer=attention,
        mlp=mlp,
        input_norm=layer_norm(h, "post_attention_layernorm"),
        mlp_norm=layer_norm(h, "post_mlp_layernorm"),
        post_norm=True,
        named_output=True,
        dropout=hidden,
    )
    embeddings = "gte.embeddings"
    table = ParameterTensor(f"{embeddings}.token_type_embeddings.weight", (types, h), "position")
    norm = layer_norm(h, "lm_head.layer_norm")
    return decoder(
        config,
        size,
        ((block, size.layers),),
        tied=True,
        embedding_norm=layer_norm(h, f"{embeddings}.LayerNorm"),
        embeddings_apart=True,
        embedding_dropout=hidden,
        head_bias=True,
        head_transform="gelu",
        head_tensors=(*linear("lm_head.dense", h, h, "head", "none", bias=True), *norm_tensors(norm)),
        narrow_loss=True,
        token_types=types,
        extra_tensors=(table,) if types else (),
        paths=Paths(layers="gte.layers", embedding=f"{embeddings}.word_embeddings", head="lm_head.decoder"),
    )._replace(final_norm=None)
