"""BERT and RoBERTa (modeling_bert.py, modeling_roberta.py), and what shares their layers: heads for masked words."""

from __future__ import annotations

from collections.abc import Callable

from memcheck.models.decoder import (
    Projections,
    StackDimensions,
    decoder,
    grouped_attention,
    layer_norm,
    linear,
    norm_tensors,
    plain_mlp,
    read_sizes,
)
from memcheck.models.module_types import EAGER, BertMlp
from memcheck.models.reader import ConfigReader
from memcheck.models.types import (
    Architecture,
    Attention,
    Block,
    EmbeddingModule,
    HeadLayer,
    LogitCasts,
    Mlp,
    ParameterTensor,
    Paths,
    Pooling,
)
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PROJECTIONS = Projections(("self.query", "self.key", "self.value"), "output.dense", "attention")


class PartNames(Record):
    """What a class calls its parts, and how it pools."""

    model: str
    head: str
    dense: str
    norm: str
    pooler: str
    """The layer in front of labels of sequences."""
    pools: str = "tanh"
    """Activation of the pooling layer."""
    drops_first: bool = True
    """Dropout runs before that layer, too."""
    classifier_dropout: str = "classifier_dropout"
    """The key of the dropout in front of labels."""
    transform: str = ""
    """Activation of the layer in front of the head, where it is not the layers'."""
    body_pools: bool = False
    """The class without a head has a pooling layer (``add_pooling_layer``)."""


def transform_names(model: str, pooler: str, *, pools: str = "tanh", body_pools: bool = False) -> PartNames:
    """Return the module paths of a class whose head is BERT's own and whose pooler has no dropout before it.

    ``model``: attribute that holds the encoder. ``pooler``: the pooler's path.
    """
    transform = "cls.predictions.transform"
    return PartNames(
        model=model,
        head="cls.predictions",
        dense=f"{transform}.dense",
        norm=f"{transform}.LayerNorm",
        pooler=pooler,
        pools=pools,
        drops_first=False,
        body_pools=body_pools,
    )


ROBERTA = PartNames(
    model="roberta",
    head="lm_head",
    dense="lm_head.dense",
    norm="lm_head.layer_norm",
    pooler="classifier.dense",
    body_pools=True,
)


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: bert``. Dropout is 0.1 unless stated, as in the class."""
    return encoder(config, transform_names("bert", "bert.pooler.dense", body_pools=True))


def read_roberta(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: roberta``, ``xlm-roberta`` and ``camembert``: the same layers, another name
    of the head's.
    """
    return encoder(config, ROBERTA)


def read_data2vec(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: data2vec-text``: RoBERTa's layers and head."""
    return encoder(config, ROBERTA._replace(model="data2vec_text"))


def read_prelayernorm(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: roberta-prelayernorm``: RoBERTa with norms in front of the halves, and one
    after the layers.
    """
    model = "roberta_prelayernorm"
    architecture = encoder(config, ROBERTA._replace(model=model))
    names = ("attention.LayerNorm", "intermediate.LayerNorm", f"{model}.LayerNorm")
    return _norms_in_front(architecture, names, _inline)


def _inline(block: Block) -> Block:
    return block._replace(mlp=block.mlp._replace(inline=True)) if isinstance(block.mlp, Mlp) else block


def read_xl(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: xlm-roberta-xl``: norms in front of the halves and after the layers, none
    after the tables.
    """
    names = ("attention.self_attn_layer_norm", "LayerNorm", "roberta.encoder.LayerNorm")
    architecture = _norms_in_front(encoder(config, ROBERTA), names, lambda b: b._replace(dropout_place="mixer"))
    return architecture._replace(embedding_norm=None)


def _norms_in_front(
    architecture: Architecture, names: tuple[str, str, str], change_block: Callable[[Block], Block]
) -> Architecture:
    """Return the model with norms before attention and MLP, and one after the last layer.

    ``names``: of the three norms. ``change_block``: what else differs in a layer.
    """
    first, second, last = names
    hidden, blocks = architecture.hidden_size, []
    for block, count in architecture.blocks:
        norms = block._replace(input_norm=layer_norm(hidden, first), mlp_norm=layer_norm(hidden, second), residual="")
        blocks.append((change_block(norms), count))
    return architecture._replace(blocks=tuple(blocks), final_norm=layer_norm(hidden, last))


def read_ernie(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: ernie``: BERT's layers; on request a table of kinds of tasks in addition to
    that of words.
    """
    kinds = config.integer("task_type_vocab_size", default=3)
    config.refuse("use_task_id", f"a table of {kinds} kinds of tasks has no memory model", "remove use_task_id")
    return encoder(config, transform_names("ernie", "ernie.pooler.dense", body_pools=True))


def read_electra(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: electra``: its generator, whose tables may be narrower than its layers.

    The head for masked words is that of ElectraForMaskedLM; the discriminator's, one number a token, is smaller.
    """
    config.ignore("summary_activation", "summary_last_dropout", "summary_type", "summary_use_proj")
    names = PartNames(
        model="electra",
        head="generator_lm_head",
        dense="generator_predictions.dense",
        norm="generator_predictions.LayerNorm",
        pooler="classifier.dense",
        pools="gelu",
        transform="gelu",
    )
    return encoder(config, names, narrow=config.integer("embedding_size", default=128))


def encoder(config: ConfigReader, names: PartNames, narrow: int | None = None, dropout: float = 0.1) -> Architecture:
    """Build an encoder that predicts a word at every position: no causal mask, and labels that are not shifted."""
    size = read_sizes(config, kv_heads="none", head_dim_key=False, learned_positions=True)
    config.ignore("position_embedding_type", "use_cache", "gradient_checkpointing")
    for key in ("is_decoder", "add_cross_attention"):
        config.refuse(key, f"{key}: decoders of this family are not modelled", f"remove {key}")
    attention = bidirectional(size, config.dropout("attention_probs_dropout_prob", default=dropout))
    types = config.integer("type_vocab_size", default=2)
    return assemble(config, size, names, attention, types=types, narrow=narrow, dropout=dropout)


def bidirectional(
    size: StackDimensions, dropout: float, projections: Projections = PROJECTIONS, **fields: Any
) -> Attention:
    """Build attention where every position sees every other; its eager softmax is in the dtype of the scores.

    ``fields``: further ones of :class:`Attention`. All matrices have biases.
    """
    return grouped_attention(
        size,
        projections,
        qkv_bias=True,
        out_bias=True,
        dropout=dropout,
        bidirectional=True,
        eager=EAGER._replace(softmax_fp32=False),
        **{"rotary_dim": 0, **fields},
    )


def assemble(
    config: ConfigReader,
    size: StackDimensions,
    names: PartNames,
    attention: Attention,
    *,
    types: int,
    narrow: int | None = None,
    extra: tuple[ParameterTensor, ...] = (),
    dropout: float = 0.1,
) -> Architecture:
    """Return BERT's layers around an attention, between BERT's embeddings and its head for masked words.

    ``types``: rows of the table of token types. ``narrow``: width of the embedding tables, if the layers' width
    differs. ``extra``: tensors in addition to the tables. ``dropout``: the class's default.
    """
    hidden, hidden_dropout = size.hidden, config.dropout("hidden_dropout_prob", default=dropout)
    activation = config.activation(default="gelu")
    mlp = plain_mlp(
        hidden, config.integer("intermediate_size"), activation, "intermediate.dense", "output.dense", bias=True
    )
    block = Block(
        mixer=attention,
        mlp=BertMlp(*mlp),
        input_norm=layer_norm(hidden, "attention.output.LayerNorm"),
        mlp_norm=layer_norm(hidden, "output.LayerNorm"),
        residual="post-norm",
        dropout=hidden_dropout,
    )
    width, model = narrow or hidden, names.model
    layers, embeddings = f"{model}.encoder.layer", f"{model}.embeddings"
    paths = EncoderPaths(layers, embeddings, head=names.head, dense=names.dense, norm=names.norm)
    tables = list(extra)
    if types:
        tables.append(ParameterTensor(f"{embeddings}.token_type_embeddings.weight", (types, width), "position"))
    if width != hidden:
        tables += linear(f"{model}.embeddings_project", hidden, width, "embedding", "none", bias=True)
    pooling = Pooling(
        names.pools,
        head_matrix(names.pooler, hidden, hidden),
        dropout=config.dropout(names.classifier_dropout, default=hidden_dropout),
        dropout_before=names.drops_first,
        also_in=("embedding",) if names.body_pools else (),
    )
    return masked_word_model(
        config,
        size,
        block,
        paths,
        activation=names.transform or activation,
        width=width,
        token_types=types,
        dropout=hidden_dropout,
        learned_positions=size.positions,
        pooling=pooling,
        extra_tensors=tuple(tables),
    )


class EncoderPaths(Record):
    """Module paths of an encoder with a head for masked words."""

    layers: str
    embeddings: str
    """The module that looks words up and norms them."""
    head: str
    dense: str
    """The layer before the head."""
    norm: str
    """The norm after that layer."""


def head_matrix(name: str, outputs: int, inputs: int) -> tuple[ParameterTensor, ...]:
    """List the weight [outputs, inputs] and the bias of a layer in front of a head."""
    return linear(name, outputs, inputs, "head", "none", bias=True)


def masked_word_model(
    config: ConfigReader,
    size: StackDimensions,
    block: Block,
    paths: EncoderPaths,
    *,
    activation: str,
    width: int,
    token_types: int,
    dropout: float,
    **fields: Any,
) -> Architecture:
    """Build an encoder of equal layers, with a head for masked words: a layer, a norm, the embedding's own matrix.

    ``activation``: of that layer. ``width``: elements of the looked-up rows. ``token_types``: rows of the table of
    token types. ``dropout``: after the embedding. ``fields``: further ones of :class:`Architecture`.
    """
    dense = head_matrix(paths.dense, width, size.hidden)
    embeddings = paths.embeddings
    architecture = decoder(
        config,
        size,
        ((block, size.layers),),
        tied=True,
        rotary_dim=0,
        embedding_size=width,
        embedding_norm=layer_norm(width, f"{embeddings}.LayerNorm"),
        embedding_module=EmbeddingModule(is_separate=True, token_types=token_types),
        embedding_dropout=dropout,
        head_bias=True,
        head_layer=HeadLayer(activation, (*dense, *norm_tensors(layer_norm(width, paths.norm)))),
        logit_casts=LogitCasts(in_model=False, in_loss=False),
        paths=Paths(
            layers=paths.layers,
            embedding=f"{embeddings}.word_embeddings",
            positions=f"{embeddings}.position_embeddings",
            head=paths.head,
        ),
    )
    return architecture._replace(final_norm=None)._replace(**fields)
