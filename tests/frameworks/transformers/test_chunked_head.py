"""TRL's supervised loss by release, against steps traced through TRL's own code (torch 2.13, transformers 5.23)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from memcheck.judge import Gate, check_file
from memcheck.what_if import with_remedies
from tests.frameworks.torch.test_towers import priced
from tests.job.test_resolve import resolved

MIB = 2**20
QWEN2: dict[str, Any] = {
    "model_type": "qwen2",
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
}
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
TRACED = [
    ("1.14.2", "bf16-pure", False, False, "none", 2, 1024, 3182.624, 2695.793, 2993.033),
    ("1.12.0", "bf16-pure", False, False, "none", 2, 1024, 3736.408, 2845.167, 3736.408),
    ("1.12.0", "bf16-mixed", False, False, "none", 2, 1024, 6365.202, 4626.654, 5888.822),
    ("1.14.2", "bf16-mixed", False, False, "none", 2, 1024, 6365.202, 4700.842, 5888.822),
    ("1.14.2", "bf16-pure", True, False, "full", 2, 1024, 1952.608, 1641.392, 1952.608),
    ("1.12.0", "bf16-pure", True, False, "full", 2, 1024, 2682.007, 1790.766, 2682.007),
    ("1.12.0", "bf16-pure", False, True, "full", 1, 2048, 1851.945, 1407.823, 1851.945),
    ("1.14.2", "bf16-pure", False, True, "full", 1, 2048, 1258.45, 1258.45, 1258.445),
]
"""TRL, precision, tied ends, adapters, recompute, rows, tokens; MiB at the peak, at the end of forward, in backward."""


@pytest.mark.parametrize("row", TRACED)
def test_chunked_nll(row: tuple[str, str, bool, bool, str, int, int, float, float, float]) -> None:
    """Peak, loss and backward are within 0.15 % of the traced step's, which takes the loss within the forward."""
    version, precision, tied, adapted, recompute, rows, tokens, peak, forward, backward = row
    training: dict[str, Any] = {
        "framework": "huggingface",
        "trainer": {"name": "trl", "version": version},
        "micro_batch_size": rows,
        "sequence_length": tokens,
        "precision": precision,
        "optimizer": {"name": "adamw", "implementation": "foreach"},
        "attention": "sdpa",
        "activation_checkpointing": recompute,
        "clip_grad_norm": False,
        "initialization": "device",
        "checkpoint": "none",
    }
    if adapted:
        training |= {"method": "lora", "lora": {"rank": 8, "target_modules": TARGETS, "dtype": "fp32"}}
    found = priced({**QWEN2, "tie_word_embeddings": tied}, training)
    instants = {each.name: each.allocated_bytes / MIB for each in found.ranks[0].instants}
    assert found.allocated_bytes / MIB == pytest.approx(peak, rel=0.0015)
    assert instants["loss"] == pytest.approx(forward, rel=0.0015)
    assert instants["backward"] == pytest.approx(backward, rel=0.0015)


@pytest.mark.parametrize(
    ("version", "loss", "code"),
    [
        (None, "", "trl-0.29"),
        (None, ", loss: chunked", "trl-1.7"),
        ("1.6.0", "", "trl-0.29"),
        ("1.6.0", ", loss: chunked", "trl-1.7"),
        ("1.7.0", "", "trl-1.7"),
        ("1.7.0", ", loss: standard", "trl-0.29"),
        ("1.7.0", ", loss: fused-linear", ""),
        ("1.7.0", ", loss: {kind: chunked, chunks: 4}", ""),
        ("1.14.2", "", "trl-1.13"),
        ("1.15.0", ", loss: standard", "trl-1.15"),
        ("1.15.0", ", loss: chunked", "trl-1.15"),
    ],
)
def test_whose_lines(version: str | None, loss: str, code: str) -> None:
    """The release and ``loss_type`` decide; where the release is unknown, whole logits count, and that is listed."""
    trainer = "trl" if version is None else f"{{name: trl, version: '{version}'}}"
    text = f"training: {{micro_batch_size: 1, sequence_length: 512, trainer: {trainer}{loss}}}\n"
    found = resolved("model: llama-3.2-1b\nhardware: {gpu: h100-80gb}\n" + text)
    objective: Any = found.job
    assert objective.objective.loss_code == code
    listed = "training.trainer.version" in {each.key for each in found.assumptions}
    assert listed == (version is None)


def test_chunks_are_a_remedy() -> None:
    """A job of whole logits that does not fit is offered them, and fits with them."""
    training: dict[str, Any] = {"method": "lora", "micro_batch_size": 4, "sequence_length": 4096, "trainer": "trl"}
    training |= {"activation_checkpointing": "full", "precision": {"recipe": "bf16-mixed", "params": "bf16"}}
    plan = {"memcheck": 1, "model": "qwen2.5-7b", "hardware": {"gpu": "l40s"}, "training": training}
    (result,), _ = check_file("p.yaml", json.dumps(plan).encode(), Gate(remedies=with_remedies))
    offered = [remedy for finding in result.findings for remedy in finding.remedies]
    assert any("chunked" in str(remedy.set) and remedy.utilization < 0.9 for remedy in offered)
