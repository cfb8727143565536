"""Plans say what their configs say: real files below the folders of ``MEMCHECK_CONFIGS`` are read a second way."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tomlkit
import yaml

from benchmarks.config_corpus import ESTIMATED, WORLDS, judged
from benchmarks.readers import ANSWERS
from memcheck.configs.importing import Imported, import_config
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


def read_torchtitan(values: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """What a torchtitan job says: batch, length, degrees, dtypes, recompute, compile, optimizer, offload."""
    run, old, new = (values.get(name) or {} for name in ("training", "experimental", "parallelism"))

    def degree(name: str) -> object:
        found = (section.get(f"{name}_parallel_degree") for section in (new, old, run))
        return next((each for each in found if each is not None), 1)

    for key in ("tensor", "context", "pipeline"):
        yield f"parallelism.{key}", degree(key)
    yield "parallelism.expert", degree("expert")
    local = run.get("local_batch_size", run.get("batch_size", 8))
    stages = degree("pipeline")
    micro = local // stages if "pipeline_parallel_degree" in old else new.get("pipeline_parallel_microbatch_size", 1)
    yield "training.micro_batch_size", local if stages == 1 else micro
    yield "training.sequence_length", run.get("seq_len", 2048)
    narrow, fast = run.get("dtype") == "bfloat16", (values.get("float8") or {}).get("enable_float8_linear")
    fast = fast or {"float8", "quantize.linear.float8"} & set((values.get("model") or {}).get("converters") or [])
    yield "training.precision", "fp8-mixed" if fast else "bf16-pure" if narrow else "bf16-mixed"
    again = values.get("activation_checkpoint") or {}
    option, mode = again.get("selective_ac_option", "2"), again.get("mode", "selective")
    whole = mode == "selective" and option != "op"
    yield "training.activation_checkpointing.mode", "full" if whole else mode
    yield "training.activation_checkpointing.every_n_layers", int(option) if whole else None
    yield "training.compile", (values.get("compile") or {}).get("enable", run.get("compile", False))
    step = values.get("optimizer") or {}
    yield "training.optimizer.name", step.get("name", "AdamW").lower()
    yield "training.optimizer.implementation", step.get("implementation", "fused")
    yield "training.options.enable_cpu_offload", run.get("enable_cpu_offload")


def read_megatron(values: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """What Megatron-LM's arguments say: dimensions, degrees, batch, dtypes, sharding, recompute, optimizer, offload."""
    said = {name.removeprefix("--"): value for name, value in values["MODEL_ARGS"].items()}
    for name in ("num-layers", "hidden-size", "num-attention-heads", "ffn-hidden-size", "num-experts"):
        yield f"model.architecture.{name.replace('-', '_')}", said.get(name)
    for name in ("tensor-model", "pipeline-model", "context", "expert-model"):
        yield f"parallelism.{name.partition('-')[0]}", said.get(f"{name}-parallel-size", 1)
    wide = said.get("tensor-model-parallel-size", 1) > 1
    yield "parallelism.sequence", bool(said.get("sequence-parallel")) if wide else None
    yield "training.micro_batch_size", said["micro-batch-size"]
    yield "training.global_batch_size", said.get("global-batch-size")
    yield "training.sequence_length", said["seq-length"]
    narrow = "bf16-mixed" if said.get("bf16") else "fp16-mixed" if said.get("fp16") else "fp32"
    yield "training.precision", "fp8-mixed" if said.get("fp8-format") and said.get("bf16") else narrow
    words = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
    stage = words[said.get("data-parallel-sharding-strategy", "optim_grads_params")]
    stage = stage if said.get("use-megatron-fsdp") else int(bool(said.get("use-distributed-optimizer")))
    yield "parallelism.zero_stage", stage
    again = "selective" if said.get("recompute-activations") else "none"
    yield "training.activation_checkpointing.mode", said.get("recompute-granularity", again)
    name = said.get("optimizer", "adam")
    yield "training.optimizer.name", {"adam": "adamw", "sgd": "sgd-momentum"}.get(name, name)
    yield "training.optimizer.offload", "cpu" if said.get("optimizer-cpu-offload") else None


def read_deepspeed(values: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """What an engine's JSON says: stage, sizes, dtype, optimizer, offload, buckets; ``auto`` says nothing."""
    zero = values.get("zero_optimization") or {}
    zero = {"stage": 1} if zero is True else zero
    yield "parallelism.zero_stage", zero.get("stage", 0)
    for name, key in (
        ("train_micro_batch_size_per_gpu", "training.micro_batch_size"),
        ("gradient_accumulation_steps", "training.gradient_accumulation_steps"),
    ):
        if isinstance(values.get(name), int) and "elasticity" not in values:
            yield key, values[name]
    for name, recipe in (("bf16", "bf16-mixed"), ("fp16", "fp16-mixed")):
        section = values.get(name) or {}
        if section.get("enabled") is True and not section.get("bf16_master_weights_and_grads"):
            yield "training.precision", recipe
    for name, key in (("optimizer", "training.optimizer.offload"), ("param", "training.offload.parameters")):
        place = (zero.get(f"offload_{name}") or {}).get("device")
        old = "cpu" if zero.get("cpu_offload" if name == "optimizer" else "cpu_offload_param") else place
        yield key, None if name == "param" and zero.get("stage") != 3 else old
    for name in ("reduce_bucket_size", "allgather_bucket_size", "stage3_max_live_parameters"):
        if zero.get(name) not in (None, "auto"):
            yield f"training.options.{name}", int(float(zero[name]))
    kind = str((values.get("optimizer") or {}).get("type", "")).lower()
    if kind in ("adam", "adamw", "lion", "muon"):
        yield "training.optimizer.name", kind


class Other(NamedTuple):
    """Configs that are read by a reading of their own, in which None means that the plan says nothing."""

    folders: tuple[str, ...]
    suffixes: tuple[str, ...]
    load: Callable[[str], Any]
    read: Callable[[dict[str, Any]], Iterator[tuple[str, object]]]
    has: str = ""
    """What each of them has; others in the folder are of another kind."""


def toml(text: str) -> Any:
    """A TOML document as plain values."""
    return tomlkit.parse(text).unwrap()


OTHERS = {
    "torchtune": Other(("torchtune",), (".yaml",), yaml.safe_load, read_torchtune),
    "nanotron": Other(("nanotron",), (".yaml",), yaml.safe_load, read_nanotron),
    "torchtitan": Other(("torchtitan",), (".toml",), toml, read_torchtitan, "training"),
    "megatron": Other(("megatron-lm",), (".yaml",), yaml.safe_load, read_megatron, "MODEL_ARGS"),
    "deepspeed": Other(("deepspeed", "deepspeed-examples"), (".json",), json.loads, read_deepspeed),
}
UNSAID = (None, False, "none")


def answered(path: Path) -> Imported | None:
    """The plan of a config, with an answer for what no config of its kind says; on as many GPUs as divide it."""
    for gpus, nodes in ((8, 1), *WORLDS):
        stated = {"hardware.gpu": ReadSetting("h200", "test"), "hardware.nodes": ReadSetting(nodes, "test")}
        answers = {**ANSWERS, "hardware.gpus_per_node": gpus}
        while True:
            found = import_config(str(path), path.read_bytes(), stated)
            asked = [key for each in found.problems for key in each.keys if key in answers and key not in stated]
            if not asked:
                break
            stated.update((key, ReadSetting(answers[key], "test")) for key in asked)
        if not found.problems:
            return found
    return None


@pytest.mark.slow
@pytest.mark.skipif(not FOLDERS, reason="MEMCHECK_CONFIGS names no folder of real configs")
@pytest.mark.parametrize("kind", OTHERS)
def test_plans_of_whole_configs_say_what_they_say(kind: str) -> None:
    """Every size-bearing key of each estimated file agrees with a second reading: targets, dtypes, degrees, offload."""
    other = OTHERS[kind]
    files = (each for folder in FOLDERS for each in Path(folder).rglob("*") if each.suffix in other.suffixes)
    paths = [each for each in files if set(other.folders) & set(each.parts)]
    if not paths:
        pytest.skip(f"no folder of {kind}'s configs")
    plans, checked, wrong = 0, 0, list[str]()
    for path in sorted(paths):
        found = answered(path) if judged(path).kind == ESTIMATED else None
        values = other.load(path.read_text()) if found is not None else None
        if found is None or (other.has and other.has not in values):
            continue
        plans += 1
        for key, value in other.read(values):
            said = found.settings[key].value if key in found.settings else None
            checked += 1
            if said != value and not (said in UNSAID and value in UNSAID):
                wrong.append(f"{path.name}: {key} is {said}, and the config says {value}")
    print(f"{kind}: {checked} values of {plans} plans, {len(wrong)} differ")  # noqa: T201  # shown with -s
    assert checked
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.skipif(not FOLDERS, reason="MEMCHECK_CONFIGS names no folder of real configs")
def test_plans_say_what_configs_say() -> None:
    """Batch, length, accumulation, method, rank, recompute and optimizer of every estimated file agree."""
    checked, compared, wrong = 0, 0, []
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
            compared += 1
            if said != value:
                wrong.append(f"{path.name}: {key} is {said}, and the config says {value}")
    print(f"{compared} values of {checked} plans, {len(wrong)} differ")  # noqa: T201  # shown with -s
    assert checked
    assert not wrong, "\n".join(wrong)
