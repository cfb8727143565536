"""What fine-tuning or serving a model needs on each GPU: the smallest number of GPUs that passes ``memcheck check``.

Every count is the verdict of a plan that the engine checked, at the edges of one search: ``count`` GPUs pass, and half
of them do not. The plan of each cell is kept, so that a page can open it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import memcheck
from memcheck.catalog.names import find_gpu, find_model

GPUS = ("rtx-4090", "l40s", "a100-40gb", "a100-80gb", "h100-80gb", "h200", "mi300x", "b200")
"""GPUs of the tables: one of each size that people rent or own."""
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Numbers of GPUs that are tried; more than eight are nodes of eight."""
SEQUENCE_LENGTH = 4096
"""Tokens per row, or as many as the model has positions for."""
FULL_TRAINING: dict[str, Any] = {
    "framework": "huggingface",
    "micro_batch_size": 1,
    "activation_checkpointing": "full",
    "precision": "bf16-mixed",
    "optimizer": "adamw",
}
LORA = {"rank": 16, "target_modules": "all-linear"}
METHODS: dict[str, dict[str, Any]] = {
    "Full fine-tune": FULL_TRAINING,
    "LoRA, rank 16": {**FULL_TRAINING, "method": "lora", "lora": LORA},
    "QLoRA, rank 16": {**FULL_TRAINING, "method": "qlora", "lora": LORA, "optimizer": "paged-adamw-8bit"},
}
"""Column to the plan's ``training``: what the tables compare."""


class Need(NamedTuple):
    """The smallest number of GPUs that passes, and the plan that was checked with it."""

    gpus: int
    utilization: float
    """The need as a share of one GPU's memory."""
    plan: dict[str, Any]


class Refused(NamedTuple):
    """No number of GPUs passes."""

    reason: str
    """The first error of a plan that cannot be estimated, or which number of GPUs needs the least memory of each."""


def smallest(model: str, gpu: str, method: str) -> Need | Refused:
    """Search the smallest number of GPUs that passes; ``Refused`` if none up to the last of ``COUNTS`` does."""
    least = (0, 0)
    for count in COUNTS:
        plan = plan_of(model, gpu, method, count)
        checked = memcheck.check(plan).plans[0]
        if checked.estimate is None:  # more GPUs change nothing
            errors = [each.message for each in checked.diagnostics or () if each.severity == "error"]
            return Refused(errors[0] if errors else checked.status)
        if checked.status == "passed":
            return Need(count, checked.estimate.utilization, plan)
        needed = (checked.estimate.needed_bytes, count)
        least = min(least, needed) if least[0] else needed
    return Refused(f"at least {least[0] / 2**30:.1f} GiB per GPU, with {least[1]} GPUs")


def plan_of(model: str, gpu: str, method: str, count: int) -> dict[str, Any]:
    """The plan of one cell: ``count`` GPUs, fully sharded where there are several."""
    nodes = max(1, count // 8)
    config = find_model(model).config
    positions = config.get("max_position_embeddings", config.get("n_positions"))
    length = min(SEQUENCE_LENGTH, positions) if isinstance(positions, int) and positions > 0 else SEQUENCE_LENGTH
    plan: dict[str, Any] = {
        "memcheck": 1,
        "name": f"{model}-{count}x{gpu}",
        "model": model,
        "hardware": {"gpu": gpu, "gpus_per_node": count // nodes, "nodes": nodes},
        "training": {**METHODS[method], "sequence_length": length},
    }
    if count > 1:
        plan["parallelism"] = {"zero_stage": 3}
    return plan


def cell(need: Need | Refused) -> str:
    """The text of a cell: ``4 GPUs, 71 %``, or a dash."""
    if isinstance(need, Refused):
        return "–"
    return f"{need.gpus} {'GPU' if need.gpus == 1 else 'GPUs'}, {need.utilization:.0%}".replace("%", " %")


def gib(gpu: str) -> float:
    """Memory of a GPU in GiB."""
    return find_gpu(gpu).memory_bytes / 2**30
