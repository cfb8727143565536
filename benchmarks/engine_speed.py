"""Estimates per second: cold (nothing remembered), of one job whose curves are known, and over layouts of one model.

    python benchmarks/engine_speed.py [CASE...]

Over layouts is what searching for remedies, sweeps and comparisons do: the model stays, the degrees change, so that
most memory curves are remembered from an earlier estimate.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

from memcheck.accounts import program, ranks  # noqa: E402
from memcheck.frameworks.megatron.ranks import megatron_ranks, remembered_steps  # noqa: E402
from memcheck.frameworks.registry import FRAMEWORKS  # noqa: E402
from memcheck.frameworks.torch.stack import remembered_ranks  # noqa: E402
from memcheck.job.resolve import Resolved, resolve  # noqa: E402
from memcheck.memory.estimate import estimate  # noqa: E402
from memcheck.plan.read import build_plan  # noqa: E402

SECONDS = 0.5
"""At least so long is each figure measured, in seconds of CPU time: other processes may be busy."""


def plan(model: str, gpus: int, framework: str = "huggingface", /, **training: Any) -> dict[str, Any]:
    """A plan's values; keyword arguments that are keys of ``parallelism`` go there."""
    layout = ("tensor", "pipeline", "context", "expert", "zero_stage", "gradient_as_bucket_view", "virtual_stages")
    parallelism = {name: training.pop(name) for name in layout if name in training}
    recipe = {
        "framework": framework,
        "micro_batch_size": 1,
        "sequence_length": 4096,
        "gradient_accumulation_steps": 1,
        "precision": "bf16-mixed",
        "optimizer": "adamw",
    }
    return {
        "memcheck": 1,
        "model": model,
        "hardware": {"gpu": "h100-80gb", "gpus_per_node": min(8, gpus), "nodes": -(-gpus // 8)},
        "parallelism": parallelism,
        "training": {**recipe, **training},
    }


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "8B on one GPU": lambda: plan("llama-3.1-8b", 1),
    "8B FSDP 8": lambda: plan("llama-3.1-8b", 8, zero_stage=3, activation_checkpointing="full"),
    "8B FSDP 8, 4 accumulated": lambda: plan("llama-3.1-8b", 8, zero_stage=3, gradient_accumulation_steps=4),
    "8B LoRA": lambda: plan("llama-3.1-8b", 1, method="lora", lora=16, gradient_accumulation_steps=4),
    "70B FSDP 64": lambda: plan("llama-3.1-70b", 64, zero_stage=3, activation_checkpointing="full"),
    "70B torchtitan TP 8 FSDP 8": lambda: plan("llama-3.1-70b", 64, "torchtitan", tensor=8, zero_stage=3),
    "405B pipeline 16": lambda: plan(
        "llama-3.1-405b", 128, "pytorch", pipeline=16, zero_stage=3, gradient_accumulation_steps=32
    ),
    "405B Megatron TP 8 PP 16": lambda: plan(
        "llama-3.1-405b", 1024, "megatron", tensor=8, pipeline=16, zero_stage=1, gradient_accumulation_steps=32
    ),
    "mixtral FSDP 16": lambda: plan("mixtral-8x7b", 16, zero_stage=3, activation_checkpointing="full"),
    "mixtral Megatron EP 8": lambda: plan(
        "mixtral-8x7b", 64, "megatron", expert=8, pipeline=4, zero_stage=1, gradient_accumulation_steps=8
    ),
}


def resolved(values: dict[str, Any]) -> Resolved:
    """The job of a plan."""
    return resolve(build_plan(values), FRAMEWORKS, base_dir=ROOT)


def layouts(values: dict[str, Any]) -> list[Resolved]:
    """The same training on more and on fewer nodes, with other numbers of accumulated micro-batches."""
    found = []
    for factor in (1, 2, 4, 8):
        for steps in (4, 8, 16, 32):
            hardware = {**values["hardware"], "nodes": values["hardware"]["nodes"] * factor}
            training = {**values["training"], "gradient_accumulation_steps": steps}
            found.append(resolved({**values, "hardware": hardware, "training": training}))
    return found


Cache = type(lru_cache(lambda: None))


@lru_cache(maxsize=1)
def caches(loaded: int) -> list[Any]:
    """Every cache of the modules that are loaded by now: so many, as to look for them takes long."""
    found = [item for item in gc.get_objects() if type(item) is Cache]
    return [item for item in found if str(getattr(item, "__module__", "")).startswith("memcheck.")]


def forget() -> None:
    """Empty every cache of the engine."""
    for cache in caches(len(sys.modules)):
        cache.cache_clear()
    ranks.forget()
    program.forget()


def rate(jobs: list[Resolved], *, cold: bool = False) -> float:
    """Estimates per second; finished ones are not remembered, and curves only unless ``cold``."""
    spent, done = 0.0, 0
    while spent < SECONDS:
        for job in jobs:
            remembered_ranks.cache_clear()
            megatron_ranks.cache_clear()
            remembered_steps.cache_clear()
            if cold:
                forget()
            start = time.process_time()
            estimate(job.job, job.gpu, job.overhead)
            spent += time.process_time() - start
            done += 1
    return done / spent


def main(names: list[str]) -> int:
    """Print a table."""
    print(f"{'estimates per second':30} {'cold':>8} {'curves':>8} {'layouts':>8}")
    for name in names or CASES:
        values = CASES[name]()
        once = [resolved(values)]
        estimate(once[0].job, once[0].gpu, once[0].overhead)
        print(f"{name:30} {rate(once, cold=True):8.0f} {rate(once):8.0f} {rate(layouts(values)):8.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
