"""BertGeneration (modeling_bert_generation.py): BERT's layers without kinds of tokens, under a plain head."""

from __future__ import annotations

from memcheck.models.families.bert import ROBERTA, assemble, bidirectional
from memcheck.models.parts.sizes import read_sizes
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture


def read(config: ConfigReader) -> Architecture:
    """``model_type: bert-generation``: each token sees those before it where ``is_decoder`` says so."""
    size = read_sizes(config, kv_heads="none", head_dim_key=False, learned_positions=True)
    config.ignore("gradient_checkpointing")
    if config.flag("add_cross_attention"):
        config.fail("add_cross_attention", "layers that read an encoder have no memory model here", "remove it")
    attention = bidirectional(size, config.dropout("attention_probs_dropout_prob", default=0.1))
    attention = attention._replace(bidirectional=not config.flag("is_decoder"))
    found = assemble(config, size, ROBERTA._replace(model="bert", head="lm_head"), attention, types=0)
    return found._replace(head_transform="", head_tensors=(), narrow_loss=False, pooling=None)
