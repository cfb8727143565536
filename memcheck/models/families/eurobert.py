"""EuroBERT (modeling_eurobert.py): Llama's layers in which every token sees every other."""

from __future__ import annotations

from typing import Literal

from memcheck.models.decoder import linear, with_attention
from memcheck.models.families import llama
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Pooling

POOLED_ROWS: dict[str, Literal["first", "mean", "labels"]] = {"bos": "first", "mean": "mean", "late": "labels"}
"""Rows that the class for labels pools, by ``classifier_pooling``."""


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: eurobert``: with a head for masked words, which has a bias where the
    networks have one.
    """
    config.ignore("mask_token_id")
    pooled = config.text("classifier_pooling", default="late")
    if pooled not in POOLED_ROWS:
        config.fail("classifier_pooling", f"classifier_pooling {pooled!r} is none of {', '.join(POOLED_ROWS)}")
    architecture = llama.read(config)
    hidden = architecture.hidden_size
    dense = linear("dense", hidden, hidden, "head", "none", bias=True)
    return architecture._replace(
        blocks=with_attention(architecture.blocks, bidirectional=True),
        head_bias=config.flag("mlp_bias"),
        pooling=Pooling("gelu", dense, rows=POOLED_ROWS[pooled]),
    )
