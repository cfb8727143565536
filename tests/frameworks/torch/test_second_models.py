"""Models beside the one that is trained, under FSDP."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.score import answer

MIB = 2**20
TRACED: dict[tuple[str, int, int, str, str, str], dict[str, float]] = {
    # (model, layers, ranks, objective, precision, how FSDP2 wraps the reference): highest MiB of instants, traced with
    # torch 2.13.0, transformers 5.23.0 and TRL 0.29.1: parameters of fp32 or of bf16, a policy of bf16 for both models
    ("mistral-7b", 4, 8, "dpo", "bf16-mixed", "whole_model"): {
        "init": 2176.1, "forward": 4040.289, "loss": 7412.04, "backward": 4936.329, "optimizer": 2720.132,
    },
    ("mistral-7b", 4, 8, "dpo", "bf16-mixed", "per_layer"): {
        "init": 2688.1, "forward": 4552.296, "loss": 4719.954, "backward": 5448.336, "optimizer": 3232.14,
    },
    ("mistral-7b", 4, 8, "dpo", "bf16-pure", "whole_model"): {
        "forward": 2952.253, "loss": 6324.005, "backward": 3744.29, "optimizer": 1360.088,
    },
    ("llama-3.2-1b", 8, 4, "kto", "bf16-mixed", "whole_model"): {"loss": 6618.667, "optimizer": 3572.728},
}  # fmt: skip


def plan(model: str, ranks: int, objective: str, precision: object, **training: object) -> dict[str, Any]:
    """Two pairs of 256 tokens, or two rows, with a resident reference."""
    return {
        "model": model,
        "hardware": {"gpu": {"name": "any", "memory_gib": 10000}, "gpus_per_node": ranks},
        "parallelism": {"zero_stage": 3},
        "training": {
            "framework": "huggingface",
            "trainer": {"name": "trl", "version": "0.29.1"},
            "objective": objective,
            "reference": "resident",
            "micro_batch_size": 2,
            "sequence_length": 256,
            "precision": precision,
            "activation_checkpointing": {"mode": "full", "reentrant": False},
            "attention": "sdpa",
            "optimizer": {"name": "adamw", "implementation": "fused"},
            "clip_grad_norm": False,
            "options": {"fsdp_version": 2},
            **training,
        },
    }


@pytest.mark.parametrize("case", TRACED, ids=lambda case: "-".join(map(str, case)))
def test_a_reference_is_gathered_in_the_policys_dtype(case: tuple[str, int, int, str, str, str]) -> None:
    """TRL hands it the mixed precision policy of the model that is trained: bf16, whichever dtype it rests in."""
    model, layers, ranks, objective, precision, wraps = case
    options = {"fsdp_version": 2, "reference_fsdp": wraps}
    found = plan(model, ranks, objective, precision, options=options)
    found["model"] = {"name": model, "overrides": {"num_hidden_layers": layers}}
    said = {each.name: each.allocated_bytes / MIB for each in answer(found).ranks[0].instants}
    for name, traced in TRACED[case].items():
        assert said[name] == pytest.approx(traced, rel=0.0005), name


def test_a_published_size_fits() -> None:
    """Llama-3.1-8B with a reference on eight cards of 80 GB: 4 bytes less for each parameter, which decides it."""
    found = answer(
        plan("llama-3.1-8b", 8, "dpo", "bf16-mixed", micro_batch_size=1, sequence_length=2048)
        | {"hardware": {"gpu": "h100-80gb", "gpus_per_node": 8}}
    )
    assert found.needed_bytes / 2**30 == pytest.approx(58.5, rel=0.01)
    assert found.utilization < 0.8


def test_a_reference_of_16_bits_stays_so() -> None:
    """accelerate casts what is trained to fp32, and ``prepare_fsdp`` leaves the reference as it was loaded."""
    narrow = {"recipe": "bf16-mixed", "params": "bf16"}
    wide = plan("llama-3.2-1b", 4, "dpo", "bf16-mixed")
    both = {
        name: next(i for i in answer(plan("llama-3.2-1b", 4, "dpo", dtype)).ranks[0].instants if i.name == "init")
        for name, dtype in (("fp32", "bf16-mixed"), ("bf16", narrow))
    }
    elements = 1_235_814_400 / 4
    assert wide["training"]["precision"] == "bf16-mixed"
    less = both["fp32"].allocated_bytes - both["bf16"].allocated_bytes
    assert less == pytest.approx(2 * elements, rel=0.01)


@pytest.mark.parametrize("fsdp", [1, 2])
def test_a_teacher_is_a_whole_copy(fsdp: int) -> None:
    """TRL's distillation trainers ask accelerate for a model that is evaluated, which FSDP does not wrap."""
    found = {}
    for ranks in (2, 8):
        distills = plan("llama-3.2-1b", ranks, "gkd", "bf16-pure", options={"fsdp_version": fsdp})
        del distills["training"]["reference"]
        distills["training"]["teacher"] = {"model": "llama-3.2-3b"}
        init = next(i for i in answer(distills).ranks[0].instants if i.name == "init")
        found[ranks] = init.components_bytes["parameters"]
    student, teacher = 2 * 1_235_814_400, 2 * 3_212_749_824
    assert found[2] == pytest.approx(student / 2 + teacher, rel=0.01)
    assert found[8] == pytest.approx(student / 8 + teacher, rel=0.01)
