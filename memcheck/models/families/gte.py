"""GTE, Nomic BERT and Jina Embeddings 3 (modeling_gte.py, modeling_nomic_bert.py, modeling_jina_embeddings_v3.py):
rotary embeddings, norms after the sums, a gate in the first two.
"""

from __future__ import annotations

from memcheck.models.decoder import (
    Projections,
    gated_mlp,
    grouped_attention,
    layer_norm,
    linear,
    plain_mlp,
    read_sizes,
)
from memcheck.models.families.bert import EncoderPaths, head_matrix, masked_word_model
from memcheck.models.module_types import EAGER, DownBiasMlp
from memcheck.models.reader import ConfigReader
from memcheck.models.types import (
    Architecture,
    Block,
    LayerVariables,
    Mlp,
    ParameterTensor,
    Pooling,
)

GTE = EncoderPaths("gte.layers", "gte.embeddings", "lm_head.decoder", dense="lm_head.dense", norm="lm_head.layer_norm")
NOMIC = EncoderPaths(
    layers="nomic_bert.layers",
    embeddings="nomic_bert.embeddings",
    head="cls.predictions",
    dense="cls.predictions.transform.dense",
    norm="cls.predictions.transform.layer_norm",
)
JINA = EncoderPaths("roberta.layers", "roberta.embeddings", "lm_head", dense="lm_head.dense", norm="lm_head.layer_norm")


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: gte``: with a head for masked words."""
    hidden_dropout = config.dropout("hidden_dropout_prob", default=0.1)
    return _encoder(config, GTE, hidden_dropout, (config.activation(default="gelu"), "gelu"), biases=True)


def read_nomic(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: nomic_bert``: GTE's layers without biases, and BERT's head and pooler."""
    hidden_dropout, activation = config.dropout("hidden_dropout_prob"), config.activation()
    architecture = _encoder(config, NOMIC, hidden_dropout, (activation, activation), biases=False)
    pooler = head_matrix("nomic_bert.pooler.dense", architecture.hidden_size, architecture.hidden_size)
    dropout = config.dropout("classifier_dropout", default=hidden_dropout)
    return architecture._replace(pooling=Pooling("tanh", pooler, dropout=dropout))


def read_jina(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: jina_embeddings_v3``: GTE's layers without a gate, RoBERTa's head and
    pooler.
    """
    hidden_dropout, activation = config.dropout("hidden_dropout_prob", default=0.1), config.activation(default="gelu")
    architecture = _encoder(config, JINA, hidden_dropout, (activation, "gelu"), biases=True, dropout=0.1)
    hidden = architecture.hidden_size
    mlp = plain_mlp(hidden, config.integer("intermediate_size"), activation, "mlp.fc1", "mlp.fc2", bias=True)
    dropout = config.dropout("classifier_dropout", default=hidden_dropout)
    pooler = head_matrix("classifier.dense", hidden, hidden)
    return architecture._replace(
        blocks=tuple((block._replace(mlp=mlp), count) for block, count in architecture.blocks),
        pooling=Pooling("tanh", pooler, dropout=dropout, dropout_before=True),
    )


def _encoder(
    config: ConfigReader,
    paths: EncoderPaths,
    hidden_dropout: float,
    activations: tuple[str, str],
    *,
    biases: bool,
    dropout: float = 0.0,
) -> Architecture:
    """Build an encoder with rotary attention, norms after the residual sums, and a head for masked words.

    ``hidden_dropout``: dropout of the residual stream. ``activations``: of the layers' networks, and of the layer
    before the head. ``biases``: the layers' matrices have biases (GTE), or none (Nomic). ``dropout``: the class's
    default of attention.
    """
    size = read_sizes(config, kv_heads="none")
    hidden = size.hidden
    token_types = config.integer("type_vocab_size", default=1 if biases else 2, minimum=0)
    attention = grouped_attention(
        size,
        Projections(),
        qkv_bias=biases,
        out_bias=biases,
        dropout=config.dropout("attention_probs_dropout_prob", default=dropout),
        bidirectional=True,
        eager=EAGER._replace(softmax_fp32=False),
    )
    mlp = gated_mlp(hidden, config.integer("intermediate_size"), activations[0])
    block = Block(
        mixer=attention,
        mlp=_with_bias_and_dropout(mlp, hidden, hidden_dropout) if biases else mlp,
        input_norm=layer_norm(hidden, "post_attention_layernorm"),
        mlp_norm=layer_norm(hidden, "post_mlp_layernorm"),
        residual="post-norm",
        lives_to_forward_end=LayerVariables(input_norm_output=False, mixer_output=True, mlp_input=False),
        dropout=hidden_dropout,
    )
    type_table = ParameterTensor(f"{paths.embeddings}.token_type_embeddings.weight", (token_types, hidden), "position")
    return masked_word_model(
        config,
        size,
        block,
        paths,
        activation=activations[1],
        width=hidden,
        token_types=token_types,
        dropout=hidden_dropout,
        rotary_dim=size.head_dim,
        extra_tensors=(type_table,) if token_types else (),
    )


def _with_bias_and_dropout(mlp: Mlp, hidden: int, dropout: float) -> Mlp:
    """Return GTE's network: the last matrix alone has a bias, and a dropout precedes it."""
    down = linear("mlp.down_proj", hidden, mlp.width, "mlp", "row", bias=True)
    return DownBiasMlp(*mlp)._replace(tensors=(*mlp.tensors[:-1], *down), inner_dropout=dropout)
