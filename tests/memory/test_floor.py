"""The lower bound is what rests between steps, and never above the peak."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from memcheck.errors import UnsupportedError
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.resolve import resolve
from memcheck.job.types import TrainingJob
from memcheck.memory.engine import states_floor
from memcheck.memory.estimate import estimate
from memcheck.plan.read import build_plan

NAMES = ("huggingface", "pytorch", "torchtitan", "megatron", "deepspeed")
MODELS = ("llama-3.2-1b", "gpt2", "deepseek-v2-lite")


def jobs(model: str, framework: str) -> list[Any]:
    """Ways to cut and to train a model on eight GPUs."""
    found = []
    recipes: list[dict[str, Any]] = [
        {},
        {"optimizer": "adamw-8bit"},
        {"optimizer": "adafactor"},
        {"precision": "fp32"},
        {"method": "lora"},
        {"method": "qlora"},
        {"freeze": ["embed", "layers:0-4"]},
        {"optimizer": {"name": "adamw", "offload": "cpu"}},
        {"offload": {"parameters": "cpu"}},
    ]
    layouts = [{"tensor": t, "pipeline": p} for t, p in product((1, 2), (1, 2))]
    for layout, stage, recipe in product(layouts, (0, 1, 2, 3), recipes):
        training = {"framework": framework, "micro_batch_size": 1, "sequence_length": 512, **recipe}
        values = {
            "memcheck": 1,
            "model": model,
            "hardware": {"gpu": "h100-80gb", "gpus_per_node": 8},
            "parallelism": {**layout, "zero_stage": stage},
            "training": training,
        }
        found.append(resolve(build_plan(values), FRAMEWORKS, base_dir="."))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("framework", NAMES)
@pytest.mark.parametrize("model", MODELS)
def test_no_peak_lies_below_the_floor(model: str, framework: str) -> None:
    """Over stages, recipes, degrees and offloads: at most what is allocated before the first micro-batch."""
    close = refused = 0
    for resolved in jobs(model, framework):
        assert isinstance(resolved.job, TrainingJob)
        try:
            answer = estimate(resolved.job, resolved.gpu, resolved.overhead)
            floor = states_floor(resolved.job)
        except UnsupportedError:
            refused += 1
            continue
        rest = max(i.allocated_bytes for rank in answer.ranks for i in rank.instants if i.name == "init")
        assert floor <= rest <= answer.allocated_bytes
        close += floor > 0.8 * rest
    assert close or refused == len(jobs(model, framework))


def test_rough_models_have_no_floor() -> None:
    """Where the tensors are not known, nothing is ruled out."""
    rough = {"rough": {"parameters": "7B", "layers": 32, "hidden_size": 4096, "activation_multiplier": 10}}
    values = {
        "memcheck": 1,
        "model": rough,
        "hardware": {"gpu": "h100-80gb"},
        "training": {"framework": "pytorch", "sequence_length": 512},
    }
    job = resolve(build_plan(values), FRAMEWORKS, base_dir=".").job
    assert isinstance(job, TrainingJob)
    assert states_floor(job) == 0
