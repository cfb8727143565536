"""Plans say what their configs say: real files below the folders of ``MEMCHECK_CONFIGS`` are read a second way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.config_corpus import ESTIMATED, judged
from benchmarks.readers import ANSWERS
from memcheck.configs.importing import import_config
from memcheck.configs.types import ConfigError, ReadSetting

FOLDERS = [folder for folder in os.environ.get("MEMCHECK_CONFIGS", "").split(os.pathsep) if os.path.isdir(folder)]
NAMES = {
    "training.micro_batch_size": ("micro_batch_size", "per_device_train_batch_size"),
    "training.sequence_length": ("sequence_len", "cutoff_len", "max_seq_length", "max_length"),
    "training.gradient_accumulation_steps": ("gradient_accumulation_steps",),
    "training.lora.rank": ("lora_r", "lora_rank"),
}
"""Plan keys that several frameworks say as one number."""


def plain(path: Path) -> dict[str, Any] | None:
    """A config as YAML alone reads it."""
    try:
        values = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError):
        return None
    named = isinstance(values, dict) and {"base_model", "model_name_or_path"} & set(values)
    return values if named else None


def wanted(values: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """What the plan has to say, by a reading that knows nothing of the readers."""
    adapted = values.get("adapter") or values.get("use_peft") or values.get("finetuning_type") == "lora"
    for key, names in NAMES.items():
        found = next((values[name] for name in names if values.get(name) is not None), None)
        if found is not None and ("lora" not in key or adapted):
            yield key, int(float(found))
    four = values.get("load_in_4bit") or values.get("quantization_bit") == 4
    yield "training.method", ("qlora" if four else "lora") if adapted else "full"
    if values.get("gradient_checkpointing") is True:
        yield "training.activation_checkpointing.mode", "full"
    optimizer = str(values.get("optimizer") or values.get("optim") or "")
    if optimizer:
        eight, paged = "8bit" in optimizer, "paged" in optimizer
        yield "training.optimizer.name", f"{'paged-' * paged}adamw{'-8bit' * eight}" if "adam" in optimizer else optimizer


@pytest.mark.slow
@pytest.mark.skipif(not FOLDERS, reason="MEMCHECK_CONFIGS names no folder of real configs")
def test_plans_say_what_configs_say() -> None:
    """Batch, length, accumulation, method, rank, recompute and optimizer of every estimated file agree."""
    checked, wrong = 0, []
    for path in sorted(each for folder in FOLDERS for each in Path(folder).rglob("*.y*ml")):
        values = plain(path)
        if values is None or judged(path).kind != ESTIMATED:
            continue
        stated = {"hardware.gpu": ReadSetting("h200", "test"), "hardware.gpus_per_node": ReadSetting(8, "test")}
        try:
            found = import_config(str(path), path.read_bytes(), stated).settings
        except ConfigError:
            continue
        checked += 1
        for key, value in wanted(values):
            said = found[key].value if key in found else ANSWERS.get(key)
            if said != value:
                wrong.append(f"{path.name}: {key} is {said}, and the config says {value}")
    assert checked
    assert not wrong, "\n".join(wrong)
