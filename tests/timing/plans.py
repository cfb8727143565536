"""Jobs whose speed is compared."""

from __future__ import annotations

from typing import Any

from memcheck.catalog.names import find_gpu
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.resolve import resolve
from memcheck.job.types import TrainingJob
from memcheck.plan.read import build_plan
from memcheck.timing.step import step_time
from memcheck.timing.types import StepTime

LAYOUT = (
    "tensor",
    "sequence",
    "context",
    "pipeline",
    "pipeline_schedule",
    "virtual_stages",
    "expert",
    "expert_tensor",
    "zero_stage",
    "shard_group",
    "reshard_after_forward",
    "gradient_sync",
)


def job(model: str = "llama-3.1-8b", gpus: int = 8, framework: str = "torchtitan", **keys: Any) -> TrainingJob:
    """A training job; keys of ``parallelism`` and of ``training`` by their names."""
    parallelism = {name: keys.pop(name) for name in LAYOUT if name in keys}
    training: dict[str, Any] = {"framework": framework, "micro_batch_size": 1, "sequence_length": 8192}
    values = {
        "memcheck": 1,
        "model": model,
        "hardware": {"gpu": "h100-80gb", "gpus_per_node": min(8, gpus), "nodes": -(-gpus // 8)},
        "parallelism": parallelism,
        "training": {**training, **keys},
    }
    resolved = resolve(build_plan(values), FRAMEWORKS, base_dir=".").job
    if not isinstance(resolved, TrainingJob):
        raise TypeError(resolved)
    return resolved


def timed(model: str = "llama-3.1-8b", gpus: int = 8, framework: str = "torchtitan", **keys: Any) -> StepTime:
    """Its time, on ``gpu`` (an H100 unless stated)."""
    gpu = find_gpu(keys.pop("gpu", "h100-80gb"))
    return step_time(job(model, gpus, framework, **keys), gpu)
