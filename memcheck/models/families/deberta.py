"""DeBERTa (modeling_deberta.py, modeling_deberta_v2.py): BERT's layers, whose scores read relative positions, too."""

from __future__ import annotations

from memcheck.models.decoder import (
    Projections,
    StackDimensions,
    grouped_attention,
    layer_norm,
    linear,
    norm_tensors,
    read_sizes,
    vector,
)
from memcheck.models.families.bert import assemble, transform_names
from memcheck.models.module_types import EAGER, KERNELS
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Attention, Block, DebertaModel, Disentangled, ParameterTensor

PROJECTIONS = Projections(("self.query_proj", "self.key_proj", "self.value_proj"), "output.dense", "attention")
SCORES = ("c2p", "p2c")


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: deberta-v2``, which V3's checkpoints name, too: with a head for masked
    words.
    """
    size = read_sizes(config, kv_heads="none", head_dim_key=False, learned_positions=True)
    hidden = size.hidden
    config.ignore("legacy", "layer_norm_eps", "summary_type")
    if config.integer("conv_kernel_size", default=0, minimum=0):
        config.fail("conv_kernel_size", "no memory model of the convolution after layer 0", "remove it")
    for key, required_value in (
        ("embedding_size", hidden),
        ("attention_head_size", size.head_dim),
        ("pooler_hidden_size", hidden),
    ):
        config.expect(key, required_value, f"{key} other than {required_value} has no memory model", "remove it")
    config.ignore("conv_act", "conv_groups")
    positions = _relative(config, size)
    tables = ParameterTensor("deberta.encoder.rel_embeddings.weight", (positions.rows, hidden), "position")
    norm = layer_norm(hidden, "deberta.encoder.LayerNorm")
    normalises_table = "layer_norm" in (
        word.strip() for word in config.text("norm_rel_ebd", default="none").lower().split("|")
    )
    attention = _attention(config, size, positions._replace(norm=norm if normalises_table else None))
    biased = config.flag("position_biased_input", default=True)
    drops = config.dropout("pooler_dropout") > 0
    names = transform_names("deberta", "pooler.dense", pools=config.activation("pooler_hidden_act", default="gelu"))
    extra = norm_tensors(norm) if normalises_table else ()
    if positions.rows:
        extra = (tables, *extra)
    architecture = assemble(
        config,
        size,
        names._replace(drops_first=drops, classifier_dropout="cls_dropout"),
        attention,
        types=config.integer("type_vocab_size", default=0, minimum=0),
        extra=extra,
    )
    return DebertaModel(*architecture)._replace(
        learned_positions=size.positions if biased else 0,
        max_position_embeddings=size.positions if biased else 0,
    )


def read_1(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: deberta``: one matrix for queries, keys and values, norms in pieces, a
    plain table of positions.
    """
    size = read_sizes(config, kv_heads="none", head_dim_key=False, learned_positions=True)
    hidden = size.hidden
    config.ignore("legacy", "layer_norm_eps")
    config.expect(
        "pooler_hidden_size", hidden, f"pooler_hidden_size other than {hidden} has no memory model", "remove it"
    )
    for key in ("talking_head", "share_att_key"):
        config.refuse(key, f"{key}: true has no memory model here", "remove it")
    positions = _relative(config, size)
    tables = ParameterTensor("deberta.encoder.rel_embeddings.weight", (positions.rows, hidden), "position")
    biased = config.flag("position_biased_input", default=True)
    drops = config.dropout("pooler_dropout") > 0
    names = transform_names("deberta", "pooler.dense", pools=config.activation("pooler_hidden_act", default="gelu"))
    architecture = assemble(
        config,
        size,
        names._replace(drops_first=drops, classifier_dropout="cls_dropout"),
        _joint_attention(config, size, positions),
        types=config.integer("type_vocab_size", default=0, minimum=0),
        extra=(tables,) if positions.rows else (),
    )
    return DebertaModel(*architecture)._replace(
        blocks=tuple((_rounded(block), n) for block, n in architecture.blocks),
        embedding_norm=architecture.embedding_norm._replace(kind="layernorm-rounded")
        if architecture.embedding_norm
        else None,
        learned_positions=size.positions if biased else 0,
        max_position_embeddings=size.positions if biased else 0,
    )


def _rounded(block: Block) -> Block:
    """Return the layer with V1's LayerNorm, which computes in fp32 and rounds its result."""
    norms = (block.input_norm, block.mlp_norm)
    first, second = (norm._replace(kind="layernorm-rounded") if norm else None for norm in norms)
    return block._replace(input_norm=first, mlp_norm=second)


def _joint_attention(config: ConfigReader, size: StackDimensions, positions: Disentangled) -> Attention:
    """Return V1's DisentangledSelfAttention: one matrix for queries, keys and values, and separate biases of two."""
    hidden, module = size.hidden, "attention.self"
    attention = _attention(config, size, positions._replace(shared=True))
    tensors = linear(f"{module}.in_proj", 3 * hidden, hidden, "attention", "column")
    tensors += tuple(vector(f"{module}.{letter}_bias", hidden, "attention") for letter in "qv")
    if positions.rows:
        for kind, name in zip(SCORES, ("pos_proj", "pos_q_proj"), strict=True):
            if kind in positions.scores:
                tensors += linear(f"{module}.{name}", hidden, hidden, "attention", "column", bias=kind == "p2c")
    return attention._replace(qkv_bias=False, extension=positions, tensors=(*tensors, *attention.tensors[-2:]))


def _relative(config: ConfigReader, size: StackDimensions) -> Disentangled:
    """Read the table of relative positions and which scores use it (``c2p|p2c``).

    The table has two rows for each distance in tokens, and none if relative attention is switched off.
    """
    raw = config.raw("pos_att_type")
    if isinstance(raw, str):
        stated_kinds = [kind.strip() for kind in raw.lower().split("|")]
    else:
        stated_kinds = [kind.strip() for kind in config.texts("pos_att_type") or ()]
    scores = tuple(kind for kind in SCORES if kind in stated_kinds)
    if len(scores) != len(stated_kinds):
        config.fail("pos_att_type", f"pos_att_type {raw!r} is not made of {' and '.join(SCORES)}")
    max_distance = config.integer("max_relative_positions", default=-1, minimum=-1)
    buckets = config.integer("position_buckets", default=-1, minimum=-1)
    shared = config.flag("share_att_key")
    if not config.flag("relative_attention"):
        return Disentangled(rows=0, scores=scores, shared=shared, dropout=0.0, norm=None)
    dropout = config.dropout("hidden_dropout_prob", default=0.1)
    stated_distances = buckets if buckets > 0 else max_distance
    distances = stated_distances if stated_distances > 0 else size.positions
    return Disentangled(rows=2 * distances, scores=scores, shared=shared, dropout=dropout, norm=None)


def _attention(config: ConfigReader, size: StackDimensions, positions: Disentangled) -> Attention:
    """Return DisentangledSelfAttention with its output layer; the matrices of positions precede the output's."""
    hidden = size.hidden
    attention = grouped_attention(
        size,
        PROJECTIONS,
        qkv_bias=True,
        out_bias=True,
        rotary_dim=0,
        dropout=config.dropout("attention_probs_dropout_prob", default=0.1),
        bidirectional=True,
        eager=EAGER._replace(softmax_fp32=False),
        kernels=KERNELS._replace(sdpa=False, flash=False),
        extension=positions,
    )
    position_matrices: tuple[ParameterTensor, ...] = ()
    if positions.rows and not positions.shared:
        for kind, name in zip(SCORES, ("pos_key_proj", "pos_query_proj"), strict=True):
            if kind in positions.scores:
                position_matrices += linear(f"attention.self.{name}", hidden, hidden, "attention", "column", bias=True)
    return attention._replace(tensors=(*attention.tensors[:-2], *position_matrices, *attention.tensors[-2:]))
