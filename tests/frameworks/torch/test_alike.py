"""Pricing equal layers once changes the time that an estimate takes, and nothing else."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from memcheck.accounts import program as ends
from memcheck.accounts.estimate import Estimate
from memcheck.accounts.program import layer_groups
from memcheck.accounts.ranks import Part, Run
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.frameworks.torch.rank_units import Accumulation, Units, part_units
from memcheck.frameworks.torch.recording import recorded
from memcheck.frameworks.torch.stack import _steps, remembered_ranks
from memcheck.job.resolve import resolve
from memcheck.memory.estimate import estimate
from memcheck.plan.read import build_plan

ONE_BY_ONE = 10**6

LAYOUTS: dict[str, dict[str, Any]] = {
    "one": {},
    "ddp": {"data": 4},
    "ddp-views": {"data": 4, "gradient_as_bucket_view": True},
    "zero1": {"data": 4, "zero_stage": 1},
    "fsdp": {"data": 4, "zero_stage": 3},
    "fsdp-kept": {"data": 4, "zero_stage": 3, "reshard_after_forward": False},
    "no-sync": {"data": 4, "zero_stage": 3, "gradient_sync": "last"},
    "tensor": {"tensor": 2, "data": 2, "zero_stage": 3},
    "pipeline": {"pipeline": 2, "data": 2, "zero_stage": 3},
}
RECIPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "recomputed": {"activation_checkpointing": "full"},
    "every-second": {"activation_checkpointing": {"mode": "full", "every_n_layers": 2}},
    "offloaded": {"activation_checkpointing": {"mode": "full", "offload": "cpu"}},
    "accumulated": {"gradient_accumulation_steps": 4},
    "frozen": {"freeze": ["embed", "layers:0-7"], "gradient_accumulation_steps": 2},
    "lora": {"method": "lora", "lora": {"rank": 8}, "gradient_accumulation_steps": 2},
    "in-bf16": {"precision": "bf16-pure", "optimizer": {"name": "adamw", "implementation": "for-loop"}},
}


def values(framework: str, layout: dict[str, Any], recipe: dict[str, Any]) -> dict[str, Any]:
    """A plan for a model of sixteen equal layers."""
    gpus = layout.get("data", 1) * layout.get("tensor", 1) * layout.get("pipeline", 1)
    training = {
        "framework": framework,
        "micro_batch_size": 2,
        "sequence_length": 1024,
        "precision": "bf16-mixed",
        "optimizer": "adamw",
        "gradient_accumulation_steps": 1,
    }
    return {
        "memcheck": 1,
        "model": "llama-3.2-1b",
        "hardware": {"gpu": "h100-80gb", "gpus_per_node": gpus},
        "parallelism": layout,
        "training": {**training, **recipe},
    }


def answer(plan: dict[str, Any], *, inventory: bool) -> Estimate:
    """The estimate of a plan."""
    job = resolve(build_plan(plan), FRAMEWORKS, base_dir=".")
    return estimate(job.job, job.gpu, job.overhead, inventory=inventory)


@pytest.mark.slow
def test_walking_the_ends_of_a_run_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peaks, instants, components and labels are those of a walk through every single layer."""
    for recipe, layout, framework in product(RECIPES, LAYOUTS, ("pytorch", "huggingface", "torchtitan", "deepspeed")):
        plan = values(framework, LAYOUTS[layout], RECIPES[recipe])
        shortened = answer(plan, inventory=False)
        with monkeypatch.context() as patched:
            patched.setattr(ends, "ENDS", ONE_BY_ONE)
            for cache in (remembered_ranks, _steps, recorded):
                cache.cache_clear()
            assert answer(plan, inventory=False) == shortened, (framework, layout, recipe)


def layers(count: int, **training: Any) -> tuple[list[Run], list[str]]:
    """The runs of one rank of a model with so many equal layers, and the names of its units."""
    plan = values("pytorch", {}, training)
    plan["model"] = {"name": "llama-3.2-1b", "overrides": {"num_hidden_layers": count}}
    job = resolve(build_plan(plan), FRAMEWORKS, base_dir=".").job
    part = Part(0, count, has_embedding=True, has_head=True)
    found = Units(job, job.architecture, Accumulation(False, None, None), False).runs(part)  # type: ignore[arg-type]
    return found, [unit.name for unit in part_units(job, job.architecture, part)]  # type: ignore[arg-type]


def test_stretches_cover_every_unit_once() -> None:
    """Stretches follow one another from the first unit to the last, and only the middle of a long run is a long one."""
    for count in range(1, 12):
        found = layer_groups([run.times for run in layers(count)[0]])
        assert [unit for start, end in found for unit in range(start, end)] == list(range(count + 2))
        assert [(start, end) for start, end in found if end - start > 1] == ([(3, count - 1)] if count > 5 else [])


def test_stretches_of_nothing() -> None:
    """Without units there are no stretches."""
    assert layer_groups([]) == []


def test_equal_layers_are_one_run() -> None:
    """One unit stands for all that are alike, and every one has its name."""
    found, names = layers(8)
    assert [(run.unit.name, run.times) for run in found] == [("embedding", 1), ("layer 0", 8), ("head and loss", 1)]
    assert names == ["embedding", *(f"layer {i}" for i in range(8)), "head and loss"]


def test_a_run_ends_where_layers_differ() -> None:
    """Every third layer recomputed and the first two frozen: each layer is in the run of its like."""
    found, _ = layers(8, activation_checkpointing={"mode": "full", "every_n_layers": 3}, freeze=["layers:0-2"])
    blocks = [(run.first_layer, run.times) for run in found if run.unit.kind == "block"]
    assert blocks == [(0, 1), (1, 1), (2, 1), (3, 1), (4, 2), (6, 1), (7, 1)]
