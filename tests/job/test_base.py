"""What the frozen model under adapters is held in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.score import answer, resolved
from memcheck.job.lookup import ResolutionError
from memcheck.memory.estimate import estimate

GIB = 2**30


def plan(framework: str = "huggingface", **training: Any) -> dict[str, Any]:
    """Adapters on an 8B model."""
    return {
        "memcheck": 1,
        "model": "llama-3.1-8b",
        "hardware": {"gpu": "h100-80gb"},
        "training": {
            "framework": framework,
            "method": "lora",
            "micro_batch_size": 1,
            "sequence_length": 2048,
            "activation_checkpointing": "full",
            **training,
        },
    }


BITS = {"int8": 8, "nf4": 4.127, "fp4": 4.127, "gptq-4bit": 4.156, "gptq-8bit": 8.19, "awq-4bit": 4.156, "fp8": 8.002}
LINEAR = 32 * (4096 * (4096 + 4096 + 1024 + 1024) + 3 * 4096 * 14336)
WIDTH = {"int8": 4, "nf4": 4, "fp4": 4}


@pytest.mark.parametrize("held", BITS)
def test_weights_with_their_scales(held: str) -> None:
    """Linear layers take their bits and those of their scales; the rest is fp32 where peft prepares the model."""
    found = answer(plan(base=held)).components_bytes["parameters"]
    rest = 8_030_261_248 - LINEAR
    expected = LINEAR * BITS[held] / 8 + rest * WIDTH.get(held, 2)
    assert found == pytest.approx(expected, rel=0.002)


def test_qlora_is_a_4_bit_base() -> None:
    """The method alone says as much as the key."""
    assert answer(plan(method="qlora")).allocated_bytes == answer(plan(base="nf4")).allocated_bytes
    single = answer(plan(base={"held_in": "nf4", "double": False}))
    assert single.components_bytes["parameters"] / GIB == pytest.approx(7.27 + 0.30, abs=0.02)


def test_int8_products_keep_their_input_through_checkpoints() -> None:
    """It is an attribute of ctx, which only a reentrant checkpoint, whose forward has no graph, leaves out."""
    kinds = (False, True)
    plain, reentrant = (
        answer(plan(base="int8", activation_checkpointing={"mode": "full", "reentrant": kind})) for kind in kinds
    )
    tokens = 2048 * (4096 * 4 * 2 + 4096 * 2 + 14336 * 4) * 32
    kept = plain.components_bytes["activations"] - reentrant.components_bytes["activations"]
    assert kept == pytest.approx(tokens, rel=0.1)


def test_gptq_keeps_dequantised_weights() -> None:
    """torch.matmul saves what it multiplies with: without recompute a copy of every linear layer in 16 bits."""
    packed, plain = (answer(plan(base=held, activation_checkpointing="none")) for held in ("gptq-4bit", "bf16"))
    kept = packed.components_bytes["activations"] - plain.components_bytes["activations"]
    assert kept == pytest.approx(2 * LINEAR, rel=0.01)


def test_floats_are_the_dtype_of_the_parameters() -> None:
    """A base in 16 or 32 bits is what precision.params says otherwise."""
    stated = plan(precision={"recipe": "bf16-mixed", "params": "fp32"})
    assert answer(plan(base="fp32")).allocated_bytes == answer(stated).allocated_bytes


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({"base": "int8", "method": "full"}, "a base held in int8 is frozen"),
        ({"base": "bf16", "method": "qlora"}, "quantises its base"),
        ({"base": {"held_in": "int8", "double": True}}, "are of 4-bit weights"),
        ({"base": "bf16", "precision": {"recipe": "bf16-mixed", "params": "fp32"}}, "`precision.params` says fp32"),
        ({"base": "int8", "framework": "torchtune"}, "has no frozen base held in int8"),
        ({"base": {"held_in": "nf4", "double": True}, "framework": "litgpt"}, "says by an option"),
    ],
)
def test_what_contradicts_itself(stated: dict[str, Any], words: str) -> None:
    """It is an error at the key, with the way out."""
    with pytest.raises(ResolutionError, match=words) as caught:
        estimate(*resolved(plan(**stated)))
    assert caught.value.problems[0].pointer == "/training/base"
    assert caught.value.problems[0].help


def test_int8_is_not_sharded_and_packed_bases_have_no_dora() -> None:
    """The rule names the way out, and a 4-bit base may be both."""
    sharded = {**plan(base="int8"), "hardware": {"gpu": "h100-80gb", "gpus_per_node": 8}}
    sharded["parallelism"] = {"zero_stage": 3}
    assert "cannot be sharded" in refused(sharded)
    assert "no DoRA" in refused(plan(base="awq-4bit", lora={"rank": 8, "dora": True}))
    sharded["training"] = plan(base="nf4", lora={"rank": 8, "dora": True})["training"]
    assert not refused(sharded)


def refused(stated: dict[str, Any]) -> str:
    """The messages of MEM408."""
    from memcheck.judge import Gate, check_file

    results, _ = check_file("plan.yaml", json.dumps(stated).encode(), Gate())
    return "; ".join(f.message for f in results[0].findings if f.code == "MEM408")
