"""ALBERT (modeling_albert.py): narrow tables before BERT's layers, which all share one set of tensors."""

from __future__ import annotations

from itertools import groupby

from memcheck.models.decoder import layer_norm, linear, norm_tensors, plain_mlp, read_sizes
from memcheck.models.encoder import MAX_LAYERS
from memcheck.models.families.bert import assemble, bidirectional, head_matrix, transform_names
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block, HeadLayer, SharedWith, UncheckpointedModel

NAMES = transform_names("albert", "albert.pooler")._replace(
    head="predictions.decoder",
    dense="predictions.dense",
    norm="predictions.LayerNorm",
    classifier_dropout="classifier_dropout_prob",
)


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: albert``. Nothing is dropped unless the configuration says so, as in the
    class.
    """
    size = read_sizes(config, kv_heads="none", head_dim_key=False, learned_positions=True)
    config.ignore("net_structure_type", "gap_size", "num_memory_blocks", "down_scale_factor", "position_embedding_type")
    hidden, narrow = size.hidden, config.integer("embedding_size", default=128)
    if narrow == hidden:
        config.fail("embedding_size", "tables as wide as the layers have no memory model in ALBERT: it projects them")
    groups = config.integer("num_hidden_groups", default=1)
    inner = config.integer("inner_group_num", default=1)
    if size.layers * inner > MAX_LAYERS:
        config.fail("inner_group_num", f"layers run {size.layers * inner:,} times, more often than {MAX_LAYERS:,}")
    architecture = assemble(
        config,
        size,
        NAMES,
        bidirectional(size, config.dropout("attention_probs_dropout_prob")),
        types=config.integer("type_vocab_size", default=2),
        narrow=narrow,
        dropout=0.0,
    )
    ((layer, _),) = architecture.blocks
    activation = config.activation(default="gelu_new")
    layer = layer._replace(
        mlp=plain_mlp(hidden, config.integer("intermediate_size"), activation, "ffn", "ffn_output", bias=True),
        input_norm=layer_norm(hidden, "attention.LayerNorm"),
        mlp_norm=layer_norm(hidden, "full_layer_layer_norm"),
        dropout_place="mixer",
    )
    project = linear("albert.encoder.embedding_hidden_mapping_in", hidden, narrow, "embedding", "none", bias=True)
    tables = tuple(t for t in architecture.extra_tensors if "embeddings_project" not in t.name)
    head = head_matrix("predictions.dense", narrow, hidden)
    return UncheckpointedModel(*architecture)._replace(
        blocks=_applications(layer, size.layers, groups, inner),
        head_layer=HeadLayer(activation, (*head, *norm_tensors(layer_norm(narrow, "predictions.LayerNorm")))),
        extra_tensors=(*tables, *project),
        paths=architecture.paths._replace(layers="albert.encoder.albert_layer_groups"),
    )


def _applications(layer: Block, layers: int, groups: int, inner: int) -> tuple[tuple[Block, int], ...]:
    """Return the model's layers in order, as (layer, how many equal ones follow each other).

    ALBERT applies the same layers again and again: ``layers`` applications of ``groups`` groups of ``inner`` layers.
    The last application of each layer holds its tensors.
    """
    applied: list[tuple[int, int]] = []  # (group, layer in the group) of each application
    for i in range(layers):
        group = int(i / (layers / groups))
        applied += [(group, inner_index) for inner_index in range(inner)]
    blocks = []
    for i, layer_id in enumerate(applied):
        shared_with = SharedWith(later=layer_id in applied[i + 1 :], earlier=layer_id in applied[:i])
        blocks.append(layer._replace(shared_with=shared_with))
    return tuple((block, len(list(equal_blocks))) for block, equal_blocks in groupby(blocks))
