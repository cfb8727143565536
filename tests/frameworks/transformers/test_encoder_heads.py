"""Labels of sequences and of tokens on encoders, against steps traced with torch 2.13 and transformers 5.23.

Four layers, eight rows of 384 tokens, bf16, AdamW (foreach), two labels. Peaks in MiB, each block rounded to 512 B.
"""

from __future__ import annotations

from typing import Any

import pytest

from memcheck.errors import MemcheckError
from tests.frameworks.torch.test_towers import priced

MIB = 2**20
BERT: dict[str, Any] = {
    "model_type": "bert",
    "vocab_size": 2000,
    "hidden_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
}
MODERN: dict[str, Any] = {
    "model_type": "modernbert",
    "vocab_size": 2000,
    "hidden_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 12,
    "intermediate_size": 1152,
    "max_position_embeddings": 8192,
}
DISTIL: dict[str, Any] = {
    "model_type": "distilbert",
    "vocab_size": 2000,
    "dim": 768,
    "n_layers": 4,
    "n_heads": 12,
    "hidden_dim": 3072,
    "max_position_embeddings": 512,
}
ROWS = {
    "BertForSequenceClassification": (BERT, "classification", 30875906, 516.041),
    "RobertaForTokenClassification": ({**BERT, "model_type": "roberta"}, "token-classification", 30285314, 511.612),
    "ModernBertForSequenceClassification": (MODERN, "classification", 22189058, 441.177),
    "ModernBertForTokenClassification": (MODERN, "token-classification", 22189058, 447.431),
    "DistilBertForSequenceClassification": (DISTIL, "classification", 30874370, 507.025),
}
"""The class: keys, head, parameters, peak of live bytes."""


@pytest.mark.parametrize("name", ROWS)
def test_heads_with_labels(name: str) -> None:
    """The class's own layer is among the parameters, and the step's peak is within 0.1 % of the traced one."""
    config, kind, parameters, peak_mib = ROWS[name]
    found = priced(
        config,
        {
            "micro_batch_size": 8,
            "sequence_length": 384,
            "sequences": "packed",
            "precision": "bf16-pure",
            "optimizer": {"name": "adamw", "implementation": "foreach"},
            "attention": "sdpa",
            "clip_grad_norm": False,
            "loss": {"kind": "standard", "keep_logits": True},
            "initialization": "device",
            "checkpoint": "none",
            "head": {"kind": kind, "labels": 2},
        },
    )
    assert found.parameters == parameters
    assert found.allocated_bytes == pytest.approx(peak_mib * MIB, rel=0.001)


ADAPTED = {
    "bert": (60.661, 193.423, 94.478, 263.940, 62.399),
    "roberta": (61.741, 194.502, 95.551, 266.100, 64.558),
    "modernbert": (43.571, 156.414, 75.484, 219.909, 44.793),
}
"""MiB at init, forward, loss, backward and optimizer, recomputed (transformers 5.24, peft 0.21). peft trains RoBERTa's
pooling layer whole, and adapts BERT's and ModernBERT's."""


@pytest.mark.parametrize("kind", ADAPTED)
def test_adapters_of_all_linear_layers(kind: str) -> None:
    """A pooling layer is trained whole, with a gradient, where its path is that of the classifier, and else adapted."""
    found = priced(
        MODERN if kind == "modernbert" else {**BERT, "model_type": kind},
        {
            "micro_batch_size": 8,
            "sequence_length": 384,
            "sequences": "packed",
            "precision": "bf16-pure",
            "optimizer": "sgd",
            "attention": "sdpa",
            "activation_checkpointing": "full",
            "clip_grad_norm": False,
            "initialization": "device",
            "checkpoint": "none",
            "head": {"kind": "classification", "labels": 2},
            "method": "lora",
            "lora": {"rank": 8, "target_modules": "all-linear", "dtype": "fp32"},
        },
    )
    said = [instant.allocated_bytes / MIB for instant in found.ranks[0].instants if instant.name != "load"]
    assert said == pytest.approx(ADAPTED[kind], rel=0.001)


def test_a_reward_on_an_encoder_is_an_error() -> None:
    """No class of encoders ends in a reward: that is said, and not priced as labels."""
    with pytest.raises(MemcheckError, match="reward head on bert"):
        priced(BERT, {"objective": "reward"})
