"""unsloth's layers, loss, checkpoints and releases."""

from __future__ import annotations

import json
from typing import Any

import pytest

from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.frameworks.torch.units import base_setting, block_curve
from memcheck.frameworks.unsloth.layers import COMPILED, FORMER, OWN, pieces_of, rotary_tables
from memcheck.frameworks.unsloth.profile import FRAMEWORK
from memcheck.job.resolve import resolve
from memcheck.job.types import TrainingJob
from memcheck.judge import Gate, check_file
from memcheck.models.types import Architecture
from memcheck.plan.read import load_documents, read_plan

SMALL = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 0.001,
    "tie_word_embeddings": False,
}
TRACED = {"saved": 7360512, "backward": 11423744}
"""Bytes of one such layer of 2 x 256 tokens, in NF4 with adapters of rank 16: what it keeps, and the highest moment of
its backward. unsloth 015bdef0's own Functions (LoRA_QKV, LoRA_MLP, LoRA_W, Fast_RMS_Layernorm, Fast_RoPE_Embedding)
were followed on torch 2.13, with xFormers' expanded keys. Weights, and the buffer of all layers, are not in it.
"""


def _plan(model: Any = None, **training: Any) -> dict[str, Any]:
    stated = {
        "trainer": "unsloth",
        "method": "qlora",
        "micro_batch_size": 2,
        "sequence_length": 256,
        "lora": {"rank": 16, "target_modules": "all-linear"},
        **training,
    }
    model = {"architecture": SMALL} if model is None else model
    return {"memcheck": 1, "model": model, "hardware": {"gpu": "a100-80gb"}, "training": stated}


def _job(model: Any = None, **training: Any) -> TrainingJob:
    (document,) = load_documents("plan.yaml", json.dumps(_plan(model, **training)).encode())
    plan, findings = read_plan(document)
    assert plan is not None, findings
    found = resolve(plan, FRAMEWORKS, base_dir=".").job
    assert isinstance(found, TrainingJob)
    return found


def _version(number: str) -> dict[str, str]:
    return {"name": "unsloth", "version": number}


def test_a_layer_keeps_what_the_code_of_unsloth_was_traced_to_keep() -> None:
    """Inputs of the norms, of q, k and v and of the feed-forward, gate and up, and attention's five: nothing else."""
    job = _job()
    assert isinstance(job.architecture, Architecture)
    ((block, _),) = job.architecture.blocks
    curve = block_curve(block, base_setting(job, job.architecture, None), "none")
    assert {"saved": curve.saved_bytes, "backward": curve.backward_peak.bytes} == TRACED


def test_a_layer_without_adapters_on_every_matrix_runs_pefts_code() -> None:
    """The Functions are put in where all of their matrices have adapters, without dropout."""
    for lora in ({"target_modules": ["q_proj", "v_proj"]}, {"target_modules": "all-linear", "dropout": 0.1}):
        job = _job(lora={"rank": 16, **lora})
        assert isinstance(job.architecture, Architecture)
        ((block, _),) = job.architecture.blocks
        curve = block_curve(block, base_setting(job, job.architecture, None), "none")
        assert curve.saved_bytes > TRACED["saved"]


def test_checkpoints_are_offloaded_unless_the_plan_says_otherwise() -> None:
    """``use_gradient_checkpointing="unsloth"`` is the default of its functions."""
    usual = _job().checkpointing
    assert (usual.mode, usual.offload, usual.reentrant) == ("full", "cpu", True)
    for mode, offload in (("full", "none"), ("none", "none")):
        stated = _job(activation_checkpointing=mode).checkpointing
        assert (stated.mode, stated.offload) == (mode, offload)


@pytest.mark.parametrize(
    ("model", "version", "kind"),
    [
        ("llama-3.1-8b", "2024.8", "in-place"),
        ("llama-3.1-8b", "2024.11.7", "chunked"),
        ("llama-3.1-8b", "2025.9.1", "fused-linear"),
        ("llama-3.1-8b", "2026.7.1", "chunked"),
        ("gemma-2-9b", "2024.8", "in-place"),
        ("gemma-3-4b", "2025.9.1", "standard"),
        ("gemma-3-4b", "2026.8", "chunked"),
    ],
)
def test_the_loss_is_that_of_the_release(model: str, version: str, kind: str) -> None:
    """Whole logits, one piece that takes what is free, or pieces of at most 4 GiB in fp32."""
    assert _job(model, trainer=_version(version)).loss.kind == kind


def test_an_unknown_release_is_the_newest() -> None:
    """It is the one whose pieces are the smallest, and none before it runs out of memory by its loss."""
    assert _job().loss.kind == _job(trainer=_version("2026.8")).loss.kind == "chunked"


def test_pieces_hold_at_most_four_gib_of_logits_in_fp32() -> None:
    """One piece, or a multiple of four (``get_chunk_size``)."""
    assert pieces_of(4096, 128256) == 1
    assert pieces_of(16384, 128256) == 4
    assert [pieces_of(tokens, 128256) % 4 for tokens in (10**5, 10**6)] == [0, 0]


@pytest.mark.parametrize(
    ("model", "training", "style"),
    [
        ("llama-3.1-8b", {}, OWN),
        ("llama-3.1-8b", {"trainer": _version("2024.12")}, FORMER),
        ("llama-3.1-8b", {"framework_version": "4.47.1"}, FORMER),
        ("phi-3.5-mini", {}, OWN),
        ("gemma-3-4b", {}, COMPILED),
    ],
)
def test_the_layers_are_those_of_the_release_and_the_model(model: str, training: dict[str, Any], style: object) -> None:
    """Its own classes, as they are and as they were; transformers' for every other model."""
    assert _job(model, **training).framework.style == style


def test_each_layer_had_its_own_cos_and_sin() -> None:
    """32,768 positions in each layer before 2025.1, all of the model's positions once since."""
    sizes = []
    for version in ("2024.8", "2026.8"):
        job = _job("llama-3.1-8b", trainer=_version(version))
        assert isinstance(job.architecture, Architecture)
        sizes.append(rotary_tables(job.architecture, base_setting(job, job.architecture, None)))
    buffer = 14336 * 4096 * 2 + 14336 * 4096 // 64 * 4
    assert sizes == [32 * 2 * 32768 * 128 * 2, 2 * 131072 * 128 * 2 + buffer]


def test_what_it_replaces_lowers_the_estimate() -> None:
    """Offloaded checkpoints, no copy of the logits, norms in place: well under TRL's Trainer with the same plan."""

    def needed(trainer: object) -> int:
        plan = _plan("llama-3.1-8b", trainer=trainer, sequence_length=8192, micro_batch_size=1)
        (result, *_), traces = check_file("plan.json", json.dumps(plan).encode(), Gate())
        assert traces == []
        assert result.estimate is not None
        return result.estimate.needed_bytes

    assert needed("unsloth") < 0.5 * needed("trl")


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"objective": "dpo"}, "has no objective `dpo`"),
        ({"method": "full", "optimizer": "adamw", "parallelism": 3}, "has no ZeRO stage 3"),
    ],
)
def test_what_it_has_no_model_of_is_refused(stated: dict[str, Any], message: str) -> None:
    """Preferences, and parameters that are divided over GPUs."""
    plan = _plan("llama-3.1-8b", **{key: value for key, value in stated.items() if key != "parallelism"})
    if "parallelism" in stated:
        plan["parallelism"] = {"zero_stage": stated["parallelism"]}
        plan["hardware"]["gpus_per_node"] = 2
        del plan["training"]["lora"]
    (result, *_), _traces = check_file("plan.json", json.dumps(plan).encode(), Gate())
    assert any(message in each.message for each in result.findings if each.severity == "error")


def test_the_profile_is_found_by_its_trainer_alone() -> None:
    """It is no value of ``training.framework``."""
    assert FRAMEWORKS["unsloth"] is FRAMEWORK
    assert "unsloth" not in FRAMEWORKS
    assert "unsloth" not in list(FRAMEWORKS)
    assert FRAMEWORKS["huggingface"].variants == ("unsloth",)
