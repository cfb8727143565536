"""RemBERT (modeling_rembert.py): BERT's layers in eager code between narrow tables and a wide head of its own."""

from __future__ import annotations

from memcheck.models.families.bert import encoder, in_eager_code, transform_names
from memcheck.models.parts.decoder import layer_norm
from memcheck.models.parts.matrices import linear, norm_tensors
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture

HEAD = "cls.predictions"


def read(config: ConfigReader) -> Architecture:
    """``model_type: rembert``: the head reads rows of ``output_embedding_size`` and is never tied."""
    narrow = config.integer("input_embedding_size", default=256)
    wide = config.integer("output_embedding_size", default=1664)
    config.ignore("tie_word_embeddings")  # the class ties nothing
    dropout = config.dropout("classifier_dropout_prob", default=0.1)
    names = transform_names("rembert", "rembert.pooler.dense", body_pools=True)
    found = encoder(config, names, narrow=narrow, dropout=0.0)
    h = found.hidden_size
    if narrow == h:
        config.fail("input_embedding_size", "tables as wide as the layers have no memory model here", "use BERT")
    project = linear("rembert.encoder.embedding_hidden_mapping_in", h, narrow, "embedding", "none", bias=True)
    tables = tuple(t for t in found.extra_tensors if "embeddings_project" not in t.name)
    return found._replace(
        extra_tensors=(*tables, *project),
        tie_word_embeddings=False,
        blocks=tuple((in_eager_code(block), count) for block, count in found.blocks),
        head_tensors=(
            *linear(f"{HEAD}.dense", wide, h, "head", "none", bias=True),
            *norm_tensors(layer_norm(wide, f"{HEAD}.LayerNorm")),
        ),
        pooling=found.pooling._replace(dropout=dropout) if found.pooling is not None else None,
        paths=found.paths._replace(head=f"{HEAD}.decoder"),
    )
