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
    named = isinstance(values, dict) and {"base_model", "model_name_or_path", "step_scheduler"} & set(values)
    return values if named else None


def recipe(values: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """What a recipe of NeMo AutoModel says, section by section."""
    steps, data, degrees = (values.get(name) or {} for name in ("step_scheduler", "dataset", "distributed"))
    packed = (values.get("packed_sequence") or {}).get("packed_sequence_size")
    stages = degrees.get("pp_size") or 1
    pipeline = degrees.get("pipeline") or values.get("autopipeline") or {}
    micro = pipeline.get("pp_microbatch_size", 1) if stages > 1 else steps.get("local_batch_size", 1)
    yield "training.micro_batch_size", micro
    yield "training.global_batch_size", steps.get("global_batch_size", 32)
    rows = packed or data.get("seq_len") or data.get("seq_length")
    if rows:
        yield "training.sequence_length", rows
    adapted = values.get("peft") or {}
    four = (values.get("quantization") or {}).get("load_in_4bit")
    yield "training.method", ("qlora" if four else "lora") if adapted else "full"
    if adapted:
        yield "training.lora.rank", adapted.get("dim", 8)
    for key, name in (("tensor", "tp_size"), ("context", "cp_size"), ("pipeline", "pp_size"), ("expert", "ep_size")):
        if isinstance(degrees.get(name), int):
            yield f"parallelism.{key}", degrees[name]
    step = values.get("optimizer") or {}
    optimizer = str(step.get("_target_", "AdamW")).rpartition(".")[2]
    flash = "flash-adamw-32" if step.get("master_weight_bits") == 32 else "flash-adamw"
    names = {"Adam": "adam", "FusedAdam": "adamw", "FlashAdamW": flash}
    yield "training.optimizer.name", names.get(optimizer, optimizer.lower())
    wide = "32" in str((values.get("model") or {}).get("torch_dtype"))
    yield "training.precision.recipe", "bf16-mixed" if wide else "bf16-pure"
    if not any(section.get("activation_checkpointing") for section in (degrees, values.get("parallelizer") or {})):
        yield "training.activation_checkpointing.mode", "none"
    if degrees.get("offload_policy"):
        yield "training.offload.parameters", "cpu"
    yield "parallelism.gradient_sync", "every" if degrees.get("defer_fsdp_grad_sync") is False else "last"


def wanted(values: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """What the plan has to say, by a reading that knows nothing of the readers."""
    if "step_scheduler" in values:
        yield from recipe(values)
        return
    switches = ("adapter", "use_peft", "use_lora", "use_qlora")
    adapted = any(values.get(name) for name in switches) or values.get("finetuning_type") == "lora"
    for key, names in NAMES.items():
        found = next((values[name] for name in names if values.get(name) is not None), None)
        if found is not None and ("lora" not in key or adapted):
            yield key, int(float(found))
    four = any(values.get(name) for name in ("load_in_4bit", "use_qlora")) or values.get("quantization_bit") == 4
    yield "training.method", ("qlora" if four else "lora") if adapted else "full"
    if values.get("gradient_checkpointing") is True:
        yield "training.activation_checkpointing.mode", "full"
    optimizer = str(values.get("optimizer") or values.get("optim") or "")
    if optimizer:
        eight, paged = "8bit" in optimizer, "paged" in optimizer
        adamw = f"{'paged-' * paged}adamw{'-8bit' * eight}"
        known = {"adamw_torch_4bit": "adamw-torchao-4bit", "adamw_torch_8bit": "adamw-torchao-8bit"}
        yield "training.optimizer.name", known.get(optimizer, adamw if "adam" in optimizer else optimizer)


def read_torchtune(values: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """What a torchtune recipe says: batch, length, adapters and their modules, dtype, optimizer, recompute, offload."""
    builder = values["model"]["_component_"].rpartition(".")[2]
    model, step = values["model"], values["optimizer"]
    yield "training.micro_batch_size", values["batch_size"]
    yield "training.gradient_accumulation_steps", values.get("gradient_accumulation_steps", 1)
    yield "training.sequence_length", values["tokenizer"].get("max_seq_len") or ANSWERS["training.sequence_length"]
    yield "training.method", builder.partition("_")[0] if builder.partition("_")[0] in ("lora", "qlora") else "full"
    if "lora_rank" in model:
        yield "training.lora.rank", model["lora_rank"]
        renamed = [name.replace("output_proj", "o_proj") for name in model["lora_attn_modules"]]
        whole = ["gate_proj", "down_proj", "up_proj"] if model.get("apply_lora_to_mlp") else []
        head = ["lm_head"] if model.get("apply_lora_to_output") else []
        yield "training.lora.target_modules", renamed + whole + head
    yield "training.precision", f"{values['dtype']}-pure" if values["dtype"] == "bf16" else values["dtype"]
    name = step["_component_"].rpartition(".")[2].lower()
    yield "training.optimizer.name", f"{'paged-' * ('paged' in name)}adamw{'-8bit' * ('8bit' in name)}"
    yield "training.optimizer.in_backward", values.get("optimizer_in_bwd", False)
    recomputed = bool(values.get("enable_activation_checkpointing")) or values.get("ac_mode") is not None
    yield "training.activation_checkpointing.mode", "full" if recomputed else "none"
    yield "training.activation_checkpointing.offload", "cpu" if values.get("enable_activation_offloading") else None
    yield "training.offload.parameters", "cpu" if values.get("fsdp_cpu_offload") else None
    yield "training.compile", bool(values.get("compile", False))
    yield "training.clip_grad_norm", values.get("clip_grad_norm") is not None
    yield "parallelism.zero_stage", 3


def read_nanotron(values: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """What a nanotron config says: dimensions, degrees, batch, dtype, optimizer, recompute."""
    model, split, tokens = values["model"]["model_config"], values["parallelism"], values["tokens"]
    for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "tie_word_embeddings"):
        yield f"model.architecture.{name}", model[name]
    yield "hardware.gpus_per_node", split["dp"] * split["tp"] * split["pp"]
    yield "parallelism.data", split["dp"]
    yield "parallelism.tensor", split["tp"]
    yield "parallelism.pipeline", split["pp"]
    yield "parallelism.sequence", split["tp_mode"] == "REDUCE_SCATTER" if split["tp"] > 1 else None
    yield "parallelism.zero_stage", values["optimizer"]["zero_stage"]
    yield "training.micro_batch_size", tokens["micro_batch_size"]
    yield "training.sequence_length", tokens["sequence_length"]
    yield "training.gradient_accumulation_steps", tokens["batch_accumulation_per_replica"]
    narrow = "bf16-mixed" if values["optimizer"]["accumulate_grad_in_fp32"] else "bf16-pure"
    yield "training.precision.recipe", {"bfloat16": narrow, "float32": "fp32"}[values["model"]["dtype"]]
    yield "training.optimizer.name", "adamw"
    yield "training.activation_checkpointing.mode", "full" if split.get("recompute_layer") else "none"


OTHERS = {"torchtune": read_torchtune, "nanotron": read_nanotron}
"""Folders whose files are read by a reading of their own, in which None means that the plan says nothing."""
UNSAID = (None, False, "none")


@pytest.mark.slow
@pytest.mark.skipif(not FOLDERS, reason="MEMCHECK_CONFIGS names no folder of real configs")
@pytest.mark.parametrize("kind", OTHERS)
def test_plans_of_whole_configs_say_what_they_say(kind: str) -> None:
    """Every size-bearing key of each estimated file agrees with a second reading: targets, dtypes, degrees, offload."""
    paths = [each for folder in FOLDERS for each in Path(folder).rglob("*.y*ml") if kind in each.parts]
    if not paths:
        pytest.skip(f"no folder of {kind}'s configs")
    estimated = [path for path in sorted(paths) if judged(path).kind == ESTIMATED]
    assert estimated
    wrong: list[str] = []
    for path in estimated:
        stated = {"hardware.gpu": ReadSetting("h200", "test")}
        found = import_config(str(path), path.read_bytes(), stated)
        for key in ("hardware.gpus_per_node", "training.sequence_length"):
            if any(key in each.keys for each in found.problems):
                stated[key] = ReadSetting(8 if key.startswith("hardware") else ANSWERS[key], "test")
        settings = import_config(str(path), path.read_bytes(), stated).settings
        for key, value in OTHERS[kind](yaml.safe_load(path.read_text())):
            said = settings[key].value if key in settings else None
            if said != value and not (said in UNSAID and value in UNSAID):
                wrong.append(f"{path.name}: {key} is {said}, and the config says {value}")
    assert not wrong, "\n".join(wrong)


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
