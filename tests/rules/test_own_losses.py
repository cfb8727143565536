"""Trainers that compute losses of their own, and those of them that are known."""

from __future__ import annotations

import pytest

from benchmarks.score import answer
from tests.rules.plans import found

PLAN = {
    "model": "qwen2.5-0.5b",
    "hardware": {"gpu": "h100-80gb"},
    "training": {
        "framework": "huggingface",
        "micro_batch_size": 2,
        "sequence_length": 512,
        "precision": "bf16-mixed",
        "optimizer": "adamw",
        "trainer": "llama-factory",
    },
}


@pytest.mark.parametrize(
    ("trainer", "objective", "refused"),
    [
        ("llama-factory", "dpo", False),
        ("llama-factory", "kto", False),
        ("llama-factory", "simpo", False),
        ("llama-factory", "cpo", True),
        ("llama-factory", "reward", True),
        ("ms-swift", "dpo", False),
        ("ms-swift", "kto", False),
        ("ms-swift", "cpo", False),
        ("open-instruct", "dpo", False),
        ("open-instruct", "simpo", False),
        ("open-instruct", "orpo", True),
    ],
)
def test_whose_losses_are_known(trainer: str, objective: str, refused: bool) -> None:
    """LLaMA-Factory's and ms-swift's losses over log-probabilities are; the former's reward model with a value head is not."""
    lines = f"framework: huggingface, trainer: {trainer}, objective: {objective}"
    assert bool(found("MEM417", "", lines)) == refused


@pytest.mark.parametrize(
    ("layout", "version", "loss", "refused"),
    [
        ("tensor: 2", "1.12", "chunked", True),
        ("tensor: 2", "1.13", "standard", False),
        ("tensor: 2", "1.16", "standard", True),
        ("zero_stage: 3", "1.12", "chunked", False),
    ],
)
def test_a_head_that_trl_gathers_is_split_by_no_tensor_ranks(
    layout: str, version: str, loss: str, refused: bool
) -> None:
    """``full_tensor`` in front of the chunks (sft_trainer.py) and of the fused head: a rank has more than its shard."""
    lines = f"framework: huggingface, trainer: {{name: trl, version: '{version}'}}, loss: {loss}"
    assert bool(found("MEM417", layout, lines)) == refused


@pytest.mark.parametrize(
    ("method", "reference", "refused"),
    [
        ("full", "adapter-off", True),
        ("full", "precomputed", False),
        ("full", "resident", False),
        ("full", "none", True),
        ("lora", "adapter-off", False),
    ],
)
def test_which_references_a_step_can_have(method: str, reference: str, refused: bool) -> None:
    """Adapters can be turned off where there are any; no step compares with nothing."""
    lines = f"framework: huggingface, objective: dpo, method: {method}, reference: {reference}"
    assert bool(found("MEM417", "", lines)) == refused


@pytest.mark.parametrize(
    ("zero_stage", "offload", "refused"), [(3, "cpu", False), (3, "none", True), (2, "none", True), (0, "none", True)]
)
def test_when_a_reference_can_be_on_the_host(zero_stage: int, offload: str, refused: bool) -> None:
    """TRL hands the reference to FSDP2, which keeps it on the host where it offloads parameters, and nowhere else."""
    lines = f"framework: huggingface, objective: dpo, reference: host, offload: {{parameters: {offload}}}"
    assert bool(found("MEM417", f"zero_stage: {zero_stage}", lines)) == refused


@pytest.mark.parametrize(
    ("more", "refused"),
    [
        ("objective: dpo, reference: resident", False),
        ("objective: kto, method: lora, reference: adapter-off", False),
        ("objective: reward, head: reward", False),
        ("objective: dpo, reference: host, offload: {parameters: cpu}", True),
        ("objective: gkd, teacher: {model: qwen2.5-0.5b}", True),
    ],
)
def test_what_deepspeeds_engine_runs(more: str, refused: bool) -> None:
    """TRL's losses that have no teacher; a reference on the host has no model there."""
    assert bool(found("MEM417", "zero_stage: 3", f"framework: deepspeed, {more}")) == refused


def test_the_reference_rests_in_16_bits_beside_trained_parameters_in_fp32() -> None:
    """LLaMA-Factory upcasts what it trains, and nothing else: TRL's reference is twice as large here."""
    training = {**PLAN["training"], "objective": "dpo", "reference": "resident"}  # type: ignore[dict-item]
    own, trl = (
        answer({**PLAN, "training": {**training, "trainer": trainer}}).ranks[0].instants[0].allocated_bytes
        for trainer in ("llama-factory", "trl")
    )
    assert trl - own == pytest.approx(2 * 494_032_768, rel=0.01)


@pytest.mark.parametrize(
    ("lines", "refused"),
    [
        ("objective: dpo", False),
        ("objective: dpo, loss: chunked", True),
        ("objective: dpo, reference: precomputed", True),
        ("objective: dpo, method: lora, reference: adapter-off", False),
        ("objective: dpo, method: qlora", True),
        ("objective: orpo", True),
        ("objective: distill", True),
        ("objective: distill, teacher: {model: qwen2.5-0.5b}", True),
        ("objective: distill, teacher: {model: llama-3.2-1b}", False),
        ("objective: distill, teacher: {model: llama-3.2-1b}, loss: standard", True),
    ],
)
def test_what_recipes_of_a_framework_have(lines: str, refused: bool) -> None:
    """torchtune has one reference for each method, divergences of chunks, and no other objective."""
    assert bool(found("MEM417", "zero_stage: 3", f"framework: torchtune, precision: bf16-pure, {lines}")) == refused


@pytest.mark.parametrize(
    ("gpus", "more", "refused"),
    [
        (1, "", False),
        (1, "gradient_accumulation_steps: 2", True),
        (2, "", True),
        (1, "clip_grad_norm: true", True),
    ],
)
def test_when_an_optimizer_steps_in_backward(gpus: int, more: str, refused: bool) -> None:
    """On one GPU, behind one micro-batch, and without the norm of all gradients."""
    lines = f"framework: torchtune, optimizer: {{name: adamw, in_backward: true}}{more and ', ' + more}"
    assert bool(found("MEM417", "", lines, gpus_per_node=gpus)) == refused
