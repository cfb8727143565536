"""LitGPT's layers and its 4-bit steps."""

from __future__ import annotations

import json
from typing import Any

import pytest

from memcheck.accounts.estimate import Instant
from memcheck.accounts.ranks import Part, Unit
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.frameworks.torch.rank_units import part_units
from memcheck.frameworks.torch.stack import training_ranks
from memcheck.job.resolve import resolve
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture
from memcheck.plan.read import load_documents, read_plan

TRACED = {
    # (model, sequences of 512 tokens): bytes that one layer with LoRA of rank 32 on q and v keeps for backward. Two
    # and three layers of litgpt 26857050's own classes, traced on fake tensors (torch 2.13.0): the difference.
    ("llama-2-7b", 2): 181249024,
    ("llama-3-8b", 1): 89338880,
    ("phi-2", 1): 38185984,
}
RANDOM_STATE = 1024
"""Seed and offset that the flash kernel returns."""
STATISTICS = 2048
"""LayerNorm's mean and rstd are bf16 on the traced CPU, fp32 on CUDA."""


def _job(model: str | dict[str, Any] = "llama-2-7b", **training: Any) -> TrainingJob:
    stated = {"framework": "litgpt", "micro_batch_size": 2, "sequence_length": 512, "method": "lora", **training}
    text = json.dumps({"memcheck": 1, "model": model, "hardware": {"gpu": "a100-80gb"}, "training": stated})
    (document,) = load_documents("plan.yaml", text.encode())
    plan, _ = read_plan(document)
    assert plan is not None
    found = resolve(plan, FRAMEWORKS, base_dir=".").job
    assert isinstance(found, TrainingJob)
    return found


def _model(each: TrainingJob) -> Architecture:
    assert isinstance(each.architecture, Architecture)
    return each.architecture


def _units(each: TrainingJob) -> list[Unit]:
    a = _model(each)
    return part_units(each, a, Part(0, a.num_layers, True, True))


def _instants(each: TrainingJob) -> dict[str, Instant]:
    return {i.name: i for i in training_ranks(each, _model(each))[0].instants}


@pytest.mark.parametrize(("model", "batch"), list(TRACED))
def test_a_lora_layer_keeps_what_litgpt_was_traced_to_keep(model: str, batch: int) -> None:
    """To the byte but for what a CPU trace has otherwise."""
    layer = _units(_job(model, micro_batch_size=batch, lora={"rank": 32}))[2].first_curve
    assert abs(layer.saved_bytes + RANDOM_STATE - TRACED[model, batch]) <= STATISTICS


def test_adapters_default_to_the_scripts_arguments() -> None:
    """Rank 8 on queries and values, in the dtype of the parameters."""
    lora = _job().lora
    assert lora is not None
    assert (lora.rank, lora.target_modules, lora.dtype) == (8, ("q_proj", "v_proj"), "bf16")


def test_no_dropout_keeps_the_norm_instead_of_dropped_values_and_mask() -> None:
    """One byte per value less: the mask."""
    with_mask, without = (_units(_job(lora={"rank": 8}, options={"lora_dropout": p}))[2].first_curve for p in (0.1, 0))
    assert with_mask.saved_bytes - without.saved_bytes == 2 * 512 * 4096


def test_four_bit_layers_keep_their_inputs_until_the_next_logits() -> None:
    """bitsandbytes 0.42 hangs them on the graph: inputs of qkv, proj, fc and the MLP's proj, 6h + 2f a token."""
    quantized = _units(_job(method="qlora", optimizer="paged-adamw"))
    layer = quantized[2].first_curve
    assert layer.until_graph_freed == 2 * 512 * (6 * 4096 + 2 * 11008)
    assert quantized[1].first_curve.until_graph_freed == layer.until_graph_freed - 2 * 512 * 2 * 4096, (
        "nothing below the first qkv is trained"
    )
    assert _units(_job())[2].first_curve.until_graph_freed == 0


def test_the_graph_of_the_step_before_counts_in_forward_but_not_in_backward() -> None:
    """Its inputs go when the model's output replaces the old one; this step's stay after backward."""
    each = _job(method="qlora", optimizer="paged-adamw")
    outlives = sum(u.first_curve.until_graph_freed for u in _units(each))
    instants = {name: i.allocated_bytes for name, i in _instants(each).items()}
    assert instants["loss"] == max(instants.values())
    resting, logits = instants["init"], 2 * 512 * 32000 * 4
    held = instants["optimizer"] - outlives - logits
    assert resting < held < 1.01 * resting, "still there when the optimizer steps"
    assert instants["loss"] - instants["backward"] == pytest.approx(outlives, rel=0.1)


@pytest.mark.parametrize(("quantize", "bits"), [("bnb.nf4", 4.5), ("bnb.nf4-dq", 4.127)])
def test_quantize_says_how_constants_rest(quantize: str, bits: float) -> None:
    """Every linear layer is replaced, the head too; the embedding stays in bf16."""
    each = _job(method="qlora", options={"quantize": quantize})
    parameters = _instants(each)["optimizer"].components_bytes["parameters"]
    linear = 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008) + 32000 * 4096
    rest = 2 * (32000 * 4096 + 65 * 4096)
    assert parameters == pytest.approx(linear * bits / 8 + rest, rel=2e-4)


def test_the_head_is_a_matrix_of_its_own() -> None:
    """LitGPT does not tie: Llama-3.2-1B holds its table twice."""
    names = [t.name for u in _units(_job("llama-3.2-1b")) for t in u.tensors]
    assert "lm_head.weight" in names


CAPPED = {
    # (method, recompute, sequences of 512 tokens): MiB in forward, loss and backward of the second step of four layers of
    # litgpt 26857050's own Gemma 2, traced on fake tensors (torch 2.13.0). A trace's optimizer runs tensor by tensor.
    ("full", "none", 2): (471.439, 624.461, 624.563),
    ("full", "full", 2): (285.835, 412.368, 412.470),
    ("full", "none", 1): (328.146, 389.144, 404.708),
    ("lora", "none", 2): (352.988, 469.990, 469.874),
    ("lora", "full", 2): (167.099, 259.605, 259.489),
}
GEMMA_2 = {
    "name": "gemma-2-2b",
    "overrides": {
        "num_hidden_layers": 4,
        "vocab_size": 16000,
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "sliding_window": 256,
    },
}
EVERY_LINEAR = ["q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "recompute", "batch"), CAPPED)
def test_capped_scores_are_made_and_kept(method: str, recompute: str, batch: int) -> None:
    """Gemma 2: scores, masks and logits, of which the cap keeps one tensor each; to 0.4 %, and 0.03 % too low at most."""
    adapters = {"lora": {"rank": 16, "target_modules": EVERY_LINEAR}} if method == "lora" else {}
    how = {"micro_batch_size": batch, "method": method, "activation_checkpointing": recompute, **adapters}
    job = _job(GEMMA_2, **how)
    (rank,) = training_ranks(job, _model(job))
    said = {instant.name: instant.allocated_bytes for instant in rank.instants}
    for name, seen in zip(("forward", "loss", "backward"), CAPPED[method, recompute, batch], strict=True):
        assert -3e-4 < said[name] / (seen * 2**20) - 1 < 4e-3, name
