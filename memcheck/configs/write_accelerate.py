"""A plan as an Accelerate YAML config: FSDP of either release, DDP, or a DeepSpeed section."""

from __future__ import annotations

from typing import Any

from memcheck.configs import read_accelerate as accelerate
from memcheck.configs.config_writer import SCRIPTS, Export, Sheet, neutral, settings_of
from memcheck.configs.read_accelerate import KEYS
from memcheck.configs.types import Written
from memcheck.configs.write_deepspeed import ELSEWHERE as TRAINER
from memcheck.edge.libyaml import yaml
from memcheck.frameworks.registry import FRAMEWORKS

ELSEWHERE = {
    **{key: where for key, where in TRAINER.items() if not key.startswith("hardware.")},
    "training.micro_batch_size": "TrainingArguments: per_device_train_batch_size",
    "training.gradient_accumulation_steps": "TrainingArguments: gradient_accumulation_steps",
    "training.optimizer.name": "TrainingArguments: optim",
    "training.optimizer.implementation": "TrainingArguments: optim",
    "training.clip_grad_norm": "TrainingArguments: max_grad_norm",
    "training.options.bucket_cap_mb": "TrainingArguments: ddp_bucket_cap_mb",
    "training.options.torch_empty_cache_steps": "TrainingArguments: torch_empty_cache_steps",
    "training.options.sync_each_batch": "TrainingArguments: accelerator_config, gradient_accumulation_kwargs",
    "parallelism.gradient_sync": "TrainingArguments: accelerator_config, gradient_accumulation_kwargs",
    "parallelism.gradient_as_bucket_view": "the script: DistributedDataParallelKwargs",
}
FIRST, PLACE = "training.options.fsdp_version", "training.initialization.place"
GATHERS = "training.options.stage3_gather_16bit_weights_on_model_save"
WORDS = {recipe: word for word, recipe in KEYS.words["recipes"].items()}


def write(export: Export) -> Written:
    """The YAML of a launch."""
    job = export.job
    zero = job.framework.data_parallel == "zero"
    launched = FRAMEWORKS["deepspeed" if zero else "huggingface"]
    sheet = Sheet(settings_of(job), neutral(launched, job.layout), KEYS.version)
    sheet.remark("model", "the script names it: --model_name_or_path")
    stage = sheet.number("parallelism.zero_stage")
    sheet.put("compute_environment", "LOCAL_MACHINE")
    if zero:
        _deepspeed(sheet)
    elif stage == 3:
        _fsdp(sheet)
    else:
        sheet.put(accelerate.TYPE, "MULTI_GPU" if job.layout.world_size > 1 else "NO")
        sheet.take("parallelism.data")
        if sheet.take("parallelism.zero_stage"):
            sheet.take("parallelism.shard_group")
            sheet.lose("parallelism.zero_stage", f"outside FSDP and DeepSpeed there is no ZeRO stage {stage}")
    _hardware(sheet)
    _precision(sheet)
    if sheet.take("training.compile"):
        sheet.put(accelerate.BACKEND, "INDUCTOR")
    for key, where in (ELSEWHERE | SCRIPTS).items():
        sheet.elsewhere(key, where)
    notices = (*export.notices, *sheet.finish())
    return Written("accelerate", _yaml(sheet.tree, export.header(KEYS.version, notices)), notices)


def _yaml(tree: dict[str, Any], header: str) -> str:
    return f"{header}\n{yaml.safe_dump(tree, sort_keys=False, default_flow_style=False)}"


def _hardware(sheet: Sheet) -> None:
    nodes, per_node = sheet.take("hardware.nodes"), sheet.take("hardware.gpus_per_node")
    sheet.put(accelerate.MACHINES, nodes)
    sheet.put(accelerate.PROCESSES, nodes * per_node)
    if nodes > 1:
        sheet.remark("hardware.nodes", "accelerate launch is told on each node: --machine_rank, --main_process_ip")


def _precision(sheet: Sheet) -> None:
    recipe = sheet.take("training.precision.recipe")
    sheet.put(accelerate.PRECISION, WORDS.get(recipe, "no"))
    if recipe not in WORDS:
        sheet.remark("training.precision", f"{recipe}: the script loads the model in that dtype (dtype=...)")


def _fsdp(sheet: Sheet) -> None:
    sheet.put(accelerate.TYPE, "FSDP")
    sheet.take("parallelism.zero_stage")
    group, data = sheet.take("parallelism.shard_group"), sheet.take("parallelism.data")
    tensor, context = sheet.number("parallelism.tensor"), sheet.number("parallelism.context")
    first, reshard = sheet.take(FIRST) == 1, sheet.take("parallelism.reshard_after_forward")
    sheet.put(accelerate.VERSION_KEY, 1 if first else 2)
    if not first:
        sheet.put(accelerate.RESHARD, reshard)
    sheet.put(accelerate.WRAP, "TRANSFORMER_BASED_WRAP")
    sharded = sheet.take("training.checkpoint.state_dict") == "sharded"  # the Trainer's own default is the full one
    sheet.put(accelerate.STATE_DICT, "SHARDED_STATE_DICT" if sharded else "FULL_STATE_DICT")
    sheet.put(accelerate.RANK0, sheet.settings.get(PLACE) == "rank0")
    if sheet.settings.get(PLACE) in ("rank0", "host"):
        sheet.take(PLACE)
    sheet.elsewhere(PLACE, "the script's: where it makes the model")
    _offload(sheet)
    key = "training.activation_checkpointing"
    recompute = sheet.settings[f"{key}.mode"] == "full" and sheet.settings[f"{key}.every_n_layers"] == 1
    sheet.put(accelerate.CHECKPOINTING, recompute)
    if recompute:
        sheet.take(f"{key}.mode")
        sheet.remark(f"{key}.mode", "leave TrainingArguments' gradient_checkpointing off: both would recompute twice")
    shard = max(1, group // context)
    if shard * context != group or data % shard:
        sheet.lose("parallelism.shard_group", f"Accelerate's shard group is a multiple of context, not {group}")
    if first:
        hybrid = shard != data and shard == sheet.number("hardware.gpus_per_node")
        word = ("HYBRID_SHARD" if reshard else "HYBRID_SHARD_ZERO2") if hybrid else "SHARD_GRAD_OP"
        sheet.put(accelerate.STRATEGY, word if hybrid or not reshard else "FULL_SHARD")
        if tensor * context > 1 or (shard != data and not hybrid):
            sheet.lose("parallelism.shard_group", "FSDP 1 shards over a node or over all, and has no other degrees")
    elif tensor * context > 1 or shard != data:
        sheet.put(accelerate.REPLICATE, data // shard)
        sheet.put(accelerate.SHARD, shard)
        sheet.rows(KEYS.rows["degrees"])


def _offload(sheet: Sheet) -> None:
    """FSDP offloads parameters, gradients and states together, or nothing; a plan need not name the states, too."""
    places = sheet.take("training.offload.parameters"), sheet.take("training.optimizer.offload")
    sheet.put(accelerate.OFFLOAD, places in (("cpu", "none"), ("cpu", "cpu")))
    if places not in (("none", "none"), ("cpu", "none"), ("cpu", "cpu")):
        sheet.lose(
            "training.offload.parameters", f"FSDP offloads parameters and states to the CPU together, not {places}"
        )


def _deepspeed(sheet: Sheet) -> None:
    sheet.put(accelerate.TYPE, "DEEPSPEED")
    sheet.take("parallelism.data")
    sheet.rows(KEYS.rows["engine"])
    third = sheet.number("parallelism.zero_stage") == 3
    sheet.put(accelerate.INIT, third and sheet.settings.get(PLACE) != "host")
    if third and sheet.settings.get(PLACE) == "host":
        sheet.take(PLACE)
    if third and sheet.settings.get(GATHERS):
        sheet.put(accelerate.GATHER, sheet.take(GATHERS))
    if sheet.number("parallelism.context") > 1:  # Ulysses, as DeepSpeed cuts sequences
        sheet.put(f"{accelerate.PARALLEL}sp_size", sheet.take("parallelism.context"))
        sheet.put(f"{accelerate.PARALLEL}sp_backend", "deepspeed")
    clip = sheet.take("training.clip_grad_norm")
    sheet.put(accelerate.ENGINE_CLIP, 1.0 if clip else 0.0)
    for name in sheet.settings:
        if name.startswith("training.options.") and name != GATHERS:
            sheet.lose(name, "only a DeepSpeed JSON config has it: export --to deepspeed")
