"""Plans say what ms-swift's launches say: real scripts below the folders of ``MEMCHECK_CONFIGS`` are read a second way."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.config_corpus import ESTIMATED, judged
from memcheck.configs.importing import import_config
from memcheck.configs.types import ReadSetting

FOLDERS = [folder for folder in os.environ.get("MEMCHECK_CONFIGS", "").split(os.pathsep) if os.path.isdir(folder)]
MEGATRON = {
    "tensor_model_parallel_size": ("parallelism.tensor", 1),
    "pipeline_model_parallel_size": ("parallelism.pipeline", 1),
    "expert_model_parallel_size": ("parallelism.expert", 1),
    "context_parallel_size": ("parallelism.context", 1),
    "micro_batch_size": ("training.micro_batch_size", 1),
    "global_batch_size": ("training.global_batch_size", 16),
    "max_length": ("training.sequence_length", None),
    "recompute_granularity": ("training.activation_checkpointing.mode", "selective"),
}
TRAINER = {
    "per_device_train_batch_size": ("training.micro_batch_size", 1),
    "max_length": ("training.sequence_length", None),
    "gradient_accumulation_steps": ("training.gradient_accumulation_steps", None),
    "rlhf_type": ("training.objective.name", None),
}
"""Arguments, the plan's key for each, and what it is where the launch is silent; None: not looked at."""
RENAMED = {"rm": "reward", "simpo": "cpo"}
METHODS = {"megatron": "full", "swift": "lora"}
"""What each command trains where the launch is silent."""


def wanted(text: str, command: str) -> Iterator[tuple[str, object]]:
    """What the plan has to say, from the lines of the training command alone."""
    found = re.search(rf"^\s*{command} (?:sft|pt|rlhf)((?:.*\\\n)*.*)", text, re.MULTILINE)
    words = found[1] if found is not None else ""
    for name, (key, default) in (MEGATRON if command == "megatron" else TRAINER).items():
        match = re.search(rf"--{name}[ \t]+[\"']?([\w.-]+)", words)
        value: object = default if match is None else int(match[1]) if match[1].isdigit() else match[1]
        if match is not None or default is not None:
            yield key, RENAMED.get(str(value), value)
    tuner = re.search(r"--(?:tuner|train|sft)_type[ \t]+[\"']?(\w+)", words)
    quantized = command == "swift" and re.search(r"--quant_bits 4", words) is not None
    method = tuner[1] if tuner is not None else METHODS[command]
    yield "training.method", "qlora" if quantized and method == "lora" else method
    rank = re.search(r"--lora_rank[ \t]+[\"']?(\d+)", words)
    if method == "lora":
        yield "training.lora.rank", int(rank[1]) if rank is not None else 8
    engine = re.search(r"--deepspeed[ \t]+zero(\d)", words)
    if engine is not None:
        yield "parallelism.zero_stage", int(engine[1])


@pytest.mark.slow
@pytest.mark.skipif(not FOLDERS, reason="MEMCHECK_CONFIGS names no folder of real configs")
@pytest.mark.parametrize("command", METHODS)
def test_plans_of_launches_say_what_they_say(command: str) -> None:
    """Degrees, batches, length, method, rank, objective and recompute of every estimated script agree."""
    scripts = [each for folder in FOLDERS for each in sorted(Path(folder).rglob("*.sh"))]
    runs = re.compile(rf"^\s*{command} (?:sft|pt|rlhf)\s", re.MULTILINE)
    estimated = [each for each in scripts if runs.search(each.read_text()) and judged(each).kind == ESTIMATED]
    if not estimated:
        pytest.skip(f"no folder of launches of {command}")
    wrong = []
    for path in estimated:
        known = {"hardware.gpu": "h200", "hardware.gpus_per_node": 8, "hardware.nodes": 1}
        free = import_config(str(path), path.read_bytes(), {})
        asked = {key for each in free.problems for key in each.keys}
        stated = {key: ReadSetting(value, "test") for key, value in known.items() if key in asked}
        found = import_config(str(path), path.read_bytes(), stated).settings
        for key, value in wanted(path.read_text(), command):
            said = found[key].value if key in found else None
            if said != value:
                wrong.append(f"{path.name}: {key} is {said}, and the script says {value}")
    assert not wrong, "\n".join(wrong)
