"""peft's variants of LoRA, against traced steps of torch 2.13, transformers 5.23 and peft 0.21.2."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.score import answer
from memcheck.errors import UnsupportedError
from memcheck.judge import Gate, check_file

MISTRAL = {
    "model_type": "mistral",
    "hidden_size": 4096,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 32768,
    "tie_word_embeddings": False,
}
LLAMA = {
    **MISTRAL,
    "model_type": "llama",
    "hidden_size": 2048,
    "num_hidden_layers": 8,
    "intermediate_size": 8192,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
}
QWEN_MOE = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
    "norm_topk_prob": True,
}
MIB = 2**20
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
SAVED = ["embed_tokens", "lm_head"]


def plan(model: dict[str, Any], batch: int, tokens: int, recompute: str, lora: dict[str, Any]) -> dict[str, Any]:
    """A plain loop that asks for the loss alone."""
    return {
        "model": {"architecture": model},
        "hardware": {"gpu": {"name": "large", "memory_gib": 1000}},
        "training": {
            "framework": "pytorch",
            "torch_version": "2.13",
            "method": "lora",
            "lora": {"rank": 16, "target_modules": "all-linear", **lora},
            "micro_batch_size": batch,
            "sequence_length": tokens,
            "precision": "bf16-pure",
            "optimizer": {"name": "adamw", "implementation": "foreach"},
            "activation_checkpointing": recompute,
            "loss": {"kind": "standard", "keep_logits": False},
            "initialization": "device",
            "checkpoint": "none",
        },
    }


@pytest.mark.parametrize(
    ("model", "batch", "tokens", "recompute", "lora", "traced"),
    [
        (MISTRAL, 1, 2048, "none", {}, (4713.72, 5201.729, 5313.713)),
        (MISTRAL, 1, 2048, "none", {"dropout": 0.05}, (5105.72, 5481.729, 5593.713)),
        (LLAMA, 4, 1024, "full", {"dropout": 0.1}, (2069.974, 6680.053, 7665.99)),
        (LLAMA, 1, 2048, "none", {"dropout": 0.1, "dtype": "bf16"}, (3671.56, 6112.569, 6605.553)),
        (MISTRAL, 1, 2048, "none", {"dora": True}, (8302.351, 7221.657, 7333.641)),
        (LLAMA, 4, 1024, "full", {"dora": True}, (2456.22, 6682.237, 7668.174)),
        (LLAMA, 1, 1024, "none", {"modules_to_save": SAVED}, (5788.475, 7000.98, 7251.472)),
        (MISTRAL, 1, 2048, "full", {"modules_to_save": SAVED}, (4237.162, 4525.187, 4878.18)),
        (
            QWEN_MOE,
            1,
            1024,
            "none",
            {"rank": 8, "target_modules": ["q_proj", "v_proj"], "target_parameters": EXPERTS},
            (6477.772, 7893.167, 8185.909),
        ),
        (MISTRAL, 1, 2048, "none", {"target_modules": ["q_proj", "v_proj", "lm_head"]}, (3643.686, 4227.820, 4339.804)),
        (
            LLAMA,
            4,
            1024,
            "full",
            {"target_modules": ["q_proj", "lm_head"], "dropout": 0.1},
            (1811.256, 6717.521, 7671.522),
        ),
    ],
)
def test_a_step_is_as_traced(
    model: dict[str, Any], batch: int, tokens: int, recompute: str, lora: dict[str, Any], traced: tuple[float, ...]
) -> None:
    """Its peak, its loss and backward. A mask is a byte per value; DoRA makes whole weights in its forward."""
    (rank,) = answer(plan(model, batch, tokens, recompute, lora)).ranks
    found = {instant.name: instant.allocated_bytes / MIB for instant in rank.instants}
    assert max(found.values()) == pytest.approx(max(traced), rel=5e-4)
    for name, expected in zip(("loss", "backward"), traced[1:], strict=True):
        assert found[name] == pytest.approx(expected, rel=5e-4), name


def test_autocast_around_bf16_parameters_keeps_bf16_casts() -> None:
    """``TrainingArguments.bf16`` around a bf16 model: adapted layers keep their input in bf16 instead of fp32."""
    with_autocast = plan(MISTRAL, 1, 2048, "none", {})
    with_autocast["training"].update(
        framework="huggingface", precision={"recipe": "bf16-mixed", "params": "bf16"}, clip_grad_norm=False
    )
    (rank,) = answer(with_autocast).ranks
    assert rank.peak.allocated_bytes / MIB == pytest.approx(4713.588, rel=5e-4)


@pytest.mark.parametrize("key", [{"dropout": 0.1}, {"dora": True}])
def test_what_peft_refuses_is_an_error(key: dict[str, Any]) -> None:
    """ParamWrapper takes neither dropout nor DoRA."""
    with pytest.raises(UnsupportedError, match="peft refuses"):
        answer(plan(QWEN_MOE, 1, 8, "none", {"target_parameters": EXPERTS, **key}))


def test_a_framework_with_adapters_of_its_own_prices_no_variant() -> None:
    """An error at the key, and never the figure without it."""
    own = plan(LLAMA, 1, 8, "none", {"dora": True})
    own["training"]["framework"] = "torchtitan"
    own["training"].pop("loss")
    with pytest.raises(UnsupportedError, match="no model of adapters with `dora`"):
        answer(own)


def test_a_dropout_of_zero_says_nothing() -> None:
    """The default, spelt out, under a framework with adapters of its own."""
    stated, left_out = (plan(LLAMA, 1, 8, "none", lora) for lora in ({"dropout": 0}, {}))
    for each in (stated, left_out):
        each["training"]["framework"] = "torchtune"
        each["training"].pop("loss")
    assert answer(stated).allocated_bytes == answer(left_out).allocated_bytes


@pytest.mark.parametrize(
    ("change", "where"),
    [({"framework": "litgpt"}, "under litgpt"), ({"loss": "chunked"}, "with a chunked loss"), ({}, "")],
)
def test_adapters_of_the_head_are_an_error_where_they_are_not_modelled(change: dict[str, Any], where: str) -> None:
    """The head is a linear layer that targets may name, beside losses over whole logits and in peft's frameworks."""
    written = {"memcheck": 1, **plan(LLAMA, 1, 128, "none", {"target_modules": ["q_proj", "lm_head"]})}
    written["training"] = {k: v for k, v in written["training"].items() if k not in ("loss", "torch_version")} | change
    (result,), _ = check_file("plan.yaml", json.dumps(written).encode(), Gate())
    found = [each.message for each in result.findings if each.code == "MEM413"]
    assert found == ([f"adapters of the head are not modelled {where}"] if where else [])
