"""Every moment of steps with adapters, against traces of torch 2.13, transformers 5.23 and peft 0.21.2."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.drawn import predicted

MOMENTS = ("init", "forward", "loss", "backward", "optimizer")
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
OVER_BF16 = {"recipe": "bf16-mixed", "params": "bf16"}


@pytest.mark.parametrize(
    ("model", "overrides", "ranks", "training", "lora", "traced"),
    [
        pytest.param(
            "glm-4.5-air",
            {"num_hidden_layers": 2},
            1,
            {"micro_batch_size": 3, "sequence_length": 1000, "activation_checkpointing": "full"},
            {"rank": 64, "target_modules": ["q_proj", "v_proj"], "target_parameters": EXPERTS},
            (8906758656, 14820177408, 13576524288, 16208947712, 9742473728),
            id="merged experts in a checkpoint's forward",
        ),
        pytest.param(
            "granite-3.1-2b",
            {"num_hidden_layers": 3},
            1,
            {"sequence_length": 1000, "precision": OVER_BF16, "activation_checkpointing": "full"},
            {"rank": 64, "dropout": 0.05, "dora": True},
            (668619264, 1199823360, 1206027776, 1557577216, 736817664),
            id="DoRA's identity under autocast",
        ),
        pytest.param(
            "granite-3.1-2b",
            {"num_hidden_layers": 3},
            1,
            {"micro_batch_size": 3, "precision": "bf16-mixed", "attention": "eager", "optimizer": "fused"},
            {
                "rank": 4,
                "dtype": "bf16",
                "dropout": 0.05,
                "target_modules": ["q_proj", "v_proj"],
                "modules_to_save": ["lm_head"],
            },
            (1170800128, 2072290816, 2788018176, 2938997248, 1372306432),
            id="states of a saved head beside a bf16 base",
        ),
        pytest.param(
            "llama-3.2-3b",
            {"num_hidden_layers": 3},
            4,
            {"micro_batch_size": 2, "precision": "bf16-mixed", "optimizer": "fused"},
            {"rank": 16},
            (355860992, 2344591872, 3032775680, 3289135616, 358489600),
            id="fp32 adapters that FSDP2 gathers in bf16",
        ),
        pytest.param(
            "gemma-4-e2b",
            {"num_hidden_layers": 10, "num_kv_shared_layers": 5},
            1,
            {"micro_batch_size": 2, "precision": OVER_BF16, "optimizer": "fused"},
            {"rank": 16},
            (3269603840, 4904795648, 8055217152, 8588728832, 3299179520),
            id="the projection of per-layer rows",
        ),
    ],
)
def test_every_moment_is_as_traced(
    model: str,
    overrides: dict[str, Any],
    ranks: int,
    training: dict[str, Any],
    lora: dict[str, Any],
    traced: tuple[int, ...],
) -> None:
    """None of them is hidden behind the peak: what is too low in one is the peak of another plan."""
    plan = {
        "memcheck": 1,
        "name": "step",
        "model": {"name": model, "part": "language", "overrides": overrides},
        "hardware": {"gpu": {"name": "any", "memory_gib": 10000}, "gpus_per_node": ranks},
        "parallelism": {"zero_stage": 3} if ranks > 1 else {},
        "training": {
            "framework": "huggingface",
            "torch_version": "2.13",
            "micro_batch_size": 1,
            "sequence_length": 512,
            "precision": "bf16-pure",
            "activation_checkpointing": "none",
            "method": "lora",
            **training,
            "optimizer": {"name": "adamw", "implementation": training.get("optimizer", "foreach")},
            "lora": {"dtype": "fp32", **lora},
            "options": {"accelerate_version": "1.13"},
        },
    }
    assert predicted(plan)["0"] == pytest.approx(dict(zip(MOMENTS, traced, strict=True)), rel=5e-4)
