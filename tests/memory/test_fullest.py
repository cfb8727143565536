"""Leaving out pipeline ranks that cannot be the worst does not change the answer."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from memcheck.errors import UnsupportedError
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.resolve import resolve
from memcheck.memory.estimate import estimate
from memcheck.plan.read import build_plan

MODELS = {"llama-3.2-1b": (2, 4), "qwen3-0.6b": (4, 3), "deepseek-v2-lite": (4, 9)}
"""Each with two numbers of stages, one of which may leave some ranks with a layer more."""


def plans(model: str, framework: str) -> list[dict[str, Any]]:
    """Layouts of one model: schedules, numbers of micro-batches, recompute."""
    schedules = (
        ("1f1b", "interleaved-1f1b") if framework == "megatron" else ("gpipe", "1f1b", "zero-bubble", "dualpipe")
    )
    found = []
    for stages, schedule, steps, mode in product(MODELS[model], schedules, (1, 4, 9, 36), ("none", "full")):
        parallelism = {"pipeline": stages, "pipeline_schedule": schedule, "zero_stage": 1}
        if schedule.startswith("interleaved"):
            parallelism["virtual_stages"] = 2
        found.append(
            {
                "memcheck": 1,
                "model": model,
                "hardware": {"gpu": "h100-80gb", "gpus_per_node": 2 * stages},
                "parallelism": parallelism,
                "training": {
                    "framework": framework,
                    "micro_batch_size": 1,
                    "sequence_length": 2048,
                    "gradient_accumulation_steps": steps,
                    "activation_checkpointing": mode,
                },
            }
        )
    return found


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["pytorch", "torchtitan", "megatron"])
@pytest.mark.parametrize("model", MODELS)
def test_the_worst_rank_is_never_left_out(model: str, framework: str) -> None:
    """Over schedules, micro-batches and uneven stages: every figure but the list of ranks is the same."""
    compared = 0
    for values in plans(model, framework):
        resolved = resolve(build_plan(values), FRAMEWORKS, base_dir=".")
        try:
            whole = estimate(resolved.job, resolved.gpu, resolved.overhead)
        except UnsupportedError:
            continue
        short = estimate(resolved.job, resolved.gpu, resolved.overhead, every_rank=False)
        assert short._replace(ranks=()) == whole._replace(ranks=())
        (worst,) = short.ranks
        assert worst.instants == (whole.ranks[worst.pipeline_rank].peak,)
        compared += len(whole.ranks) > 1
    assert compared


def _is_1f1b(values: dict[str, Any]) -> bool:
    return bool(values["parallelism"]["pipeline_schedule"] == "1f1b")


def test_every_rank_is_looked_at_where_layers_differ_by_number() -> None:
    """Frozen lower layers make the last of four equal ranks the fullest one."""
    values = next(each for each in reversed(plans("llama-3.2-1b", "pytorch")) if _is_1f1b(each))
    values["training"]["freeze"] = ["embed", "layers:0-8"]
    resolved = resolve(build_plan(values), FRAMEWORKS, base_dir=".")
    whole = estimate(resolved.job, resolved.gpu, resolved.overhead)
    short = estimate(resolved.job, resolved.gpu, resolved.overhead, every_rank=False)
    assert short._replace(ranks=()) == whole._replace(ranks=())
    assert short.pipeline_rank == values["parallelism"]["pipeline"] - 1
