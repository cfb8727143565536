"""BERT, RoBERTa and XLM-RoBERTa (modeling_bert.py, modeling_roberta.py): encoders with a head for masked words."""

from __future__ import annotations

from memcheck.models.parts.attention import Projections, grouped_attention
from memcheck.models.parts.decoder import decoder, layer_norm
from memcheck.models.parts.feed_forward import plain_mlp
from memcheck.models.parts.matrices import linear, norm_tensors
from memcheck.models.parts.sizes import read_sizes
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block, ParameterTensor, Paths

PROJECTIONS = Projections(("self.query", "self.key", "self.value"), "output.dense", "attention")


def read(config: ConfigReader) -> Architecture:
    """``model_type: bert``. Dropout is 0.1 unless stated, as in the class."""
    transform = "cls.predictions.transform"
    return _encoder(config, "bert", "cls.predictions", f"{transform}.dense", f"{transform}.LayerNorm")


def read_roberta(config: ConfigReader) -> Architecture:
    """``model_type: roberta`` and ``xlm-roberta``: the same layers, another name of the head's."""
    return _encoder(config, "roberta", "lm_head", "lm_head.dense", "lm_head.layer_norm")


def _encoder(config: ConfigReader, model: str, head: str, dense: str, norm: str) -> Architecture:
    """An encoder whose every position is predicted: nothing is masked, and labels are not shifted."""
    size = read_sizes(config, kv_heads="none", head_dim_key=False, learned_positions=True)
    h = size.hidden
    config.ignore("classifier_dropout", "position_embedding_type", "use_cache", "gradient_checkpointing")
    for key in ("is_decoder", "add_cross_attention"):
        if config.flag(key):
            config.fail(key, f"{key}: decoders of this family are not modelled", f"remove {key}")
    types = config.integer("type_vocab_size", default=2)
    hidden = config.dropout("hidden_dropout_prob", default=0.1)
    attention = grouped_attention(
        size,
        PROJECTIONS,
        qkv_bias=True,
        out_bias=True,
        rotary_dim=0,
        dropout=config.dropout("attention_probs_dropout_prob", default=0.1),
        bidirectional=True,
        softmax_fp32=False,
    )
    activation = config.activation(default="gelu")
    mlp = plain_mlp(h, config.integer("intermediate_size"), activation, "intermediate.dense", "output.dense", bias=True)
    block = Block(
        mixer=attention,
        mlp=mlp,
        input_norm=layer_norm(h, "attention.output.LayerNorm"),
        mlp_norm=layer_norm(h, "output.LayerNorm"),
        post_norm=True,
        dropout=hidden,
    )
    embeddings = f"{model}.embeddings"
    return decoder(
        config,
        size,
        ((block, size.layers),),
        tied=True,
        rotary_dim=0,
        learned_positions=size.positions,
        embedding_norm=layer_norm(h, f"{embeddings}.LayerNorm"),
        embedding_dropout=hidden,
        head_bias=True,
        head_transform=activation,
        head_tensors=(*linear(dense, h, h, "head", "none", bias=True), *norm_tensors(layer_norm(h, norm))),
        narrow_loss=True,
        token_types=types,
        extra_tensors=(ParameterTensor(f"{embeddings}.token_type_embeddings.weight", (types, h), "position"),),
        paths=Paths(
            layers=f"{model}.encoder.layer",
            embedding=f"{embeddings}.word_embeddings",
            positions=f"{embeddings}.position_embeddings",
            head=head,
        ),
    )._replace(final_norm=None)
