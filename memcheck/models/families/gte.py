"""GTE, Nomic BERT and Jina Embeddings 3 (modeling_gte.py, modeling_nomic_bert.py, modeling_jina_embeddings_v3.py):
rotary embeddings, norms after the sums, a gate in the first two.
"""

from __future__ import annotations

from memcheck.models.decoder import (
    Projections,
    decoder,
    grouped_attention,
    layer_norm,
    linear,
    norm_tensors,
    plain_mlp,
    read_sizes,
)
from memcheck.models.module_types import EAGER, DownBiasMlp
from memcheck.models.reader import ConfigReader
from memcheck.models.types import (
    Architecture,
    Block,
    EmbeddingModule,
    HeadLayer,
    LayerVariables,
    LogitCasts,
    Mlp,
    ParameterTensor,
    Paths,
    Pooling,
)


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: gte``: with a head for masked words."""
    hidden_dropout = config.dropout("hidden_dropout_prob", default=0.1)
    architecture = _encoder(config, "gte", hidden_dropout, config.activation(default="gelu"), biases=True)
    hidden = architecture.hidden_size
    norm = layer_norm(hidden, "lm_head.layer_norm")
    return architecture._replace(
        head_layer=HeadLayer(
            activation="gelu",
            tensors=(*linear("lm_head.dense", hidden, hidden, "head", "none", bias=True), *norm_tensors(norm)),
        ),
        paths=architecture.paths._replace(head="lm_head.decoder"),
    )


def read_nomic(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: nomic_bert``: GTE's layers without biases, and BERT's head and pooler."""
    hidden_dropout, activation = config.dropout("hidden_dropout_prob"), config.activation()
    architecture = _encoder(config, "nomic_bert", hidden_dropout, activation, biases=False)
    hidden, transform = architecture.hidden_size, "cls.predictions.transform"
    norm = layer_norm(hidden, f"{transform}.layer_norm")
    return architecture._replace(
        head_layer=HeadLayer(
            activation=activation,
            tensors=(*linear(f"{transform}.dense", hidden, hidden, "head", "none", bias=True), *norm_tensors(norm)),
        ),
        pooling=Pooling(
            "tanh",
            linear("nomic_bert.pooler.dense", hidden, hidden, "head", "none", bias=True),
            dropout=config.dropout("classifier_dropout", default=hidden_dropout),
        ),
        paths=architecture.paths._replace(head="cls.predictions"),
    )


def read_jina(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: jina_embeddings_v3``: GTE's layers without a gate, RoBERTa's head and
    pooler.
    """
    hidden_dropout, activation = config.dropout("hidden_dropout_prob", default=0.1), config.activation(default="gelu")
    architecture = _encoder(config, "roberta", hidden_dropout, activation, biases=True, dropout=0.1)
    hidden = architecture.hidden_size
    plain = plain_mlp(hidden, config.integer("intermediate_size"), activation, "mlp.fc1", "mlp.fc2", bias=True)
    norm = layer_norm(hidden, "lm_head.layer_norm")
    return architecture._replace(
        blocks=tuple((block._replace(mlp=plain), count) for block, count in architecture.blocks),
        head_layer=HeadLayer(
            activation="gelu",
            tensors=(*linear("lm_head.dense", hidden, hidden, "head", "none", bias=True), *norm_tensors(norm)),
        ),
        pooling=Pooling(
            "tanh",
            linear("classifier.dense", hidden, hidden, "head", "none", bias=True),
            dropout=config.dropout("classifier_dropout", default=hidden_dropout),
            dropout_before=True,
        ),
        paths=architecture.paths._replace(head="lm_head"),
    )


def _encoder(
    config: ConfigReader, model: str, hidden_dropout: float, activation: str, *, biases: bool, dropout: float = 0.0
) -> Architecture:
    """Build an encoder with rotary attention and norms after the residual sums; the caller adds the head.

    ``model``: name of the module that has embeddings and layers. ``hidden_dropout``: dropout of the residual stream.
    ``activation``: of the gated MLP. ``biases``: the layers' matrices have biases (GTE), or none (Nomic). ``dropout``:
    the class's default of attention.
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
    width = config.integer("intermediate_size")
    mlp_type = DownBiasMlp if biases else Mlp  # only the last matrix has a bias
    mlp = mlp_type(
        width=width,
        gated=True,
        activation=activation,
        bias=False,
        tensors=(
            *linear("mlp.gate_proj", width, hidden, "mlp", "column"),
            *linear("mlp.up_proj", width, hidden, "mlp", "column"),
            *linear("mlp.down_proj", hidden, width, "mlp", "row", bias=biases),
        ),
        inner_dropout=hidden_dropout if biases else 0.0,
    )
    block = Block(
        mixer=attention,
        mlp=mlp,
        input_norm=layer_norm(hidden, "post_attention_layernorm"),
        mlp_norm=layer_norm(hidden, "post_mlp_layernorm"),
        residual="post-norm",
        variables=LayerVariables(norm=False, output=True, mlp_input=False),
        dropout=hidden_dropout,
    )
    embeddings = f"{model}.embeddings"
    type_table = ParameterTensor(f"{embeddings}.token_type_embeddings.weight", (token_types, hidden), "position")
    return decoder(
        config,
        size,
        ((block, size.layers),),
        tied=True,
        embedding_norm=layer_norm(hidden, f"{embeddings}.LayerNorm"),
        embedding_module=EmbeddingModule(apart=True, token_types=token_types),
        embedding_dropout=hidden_dropout,
        head_bias=True,
        logit_casts=LogitCasts(in_model=False, in_loss=False),
        extra_tensors=(type_table,) if token_types else (),
        paths=Paths(layers=f"{model}.layers", embedding=f"{embeddings}.word_embeddings", positions="", head="lm_head"),
    )._replace(final_norm=None)
