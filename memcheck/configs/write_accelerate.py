"""A plan as an Accelerate YAML config: FSDP of either release, DDP, or a DeepSpeed section."""

from __future__ import annotations

from typing import Any

from memcheck.configs import read_accelerate as accelerate
from memcheck.configs.config_writer import SCRIPTS, ConfigWriter, Export, neutral, settings_of
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
    writer = ConfigWriter(settings_of(job), neutral(launched, job.layout), KEYS.version)
    writer.remark("model", "the script names it: --model_name_or_path")
    stage = writer.number("parallelism.zero_stage")
    writer.put("compute_environment", "LOCAL_MACHINE")
    if zero:
        _deepspeed(writer)
    elif stage == 3:
        _fsdp(writer)
    else:
        writer.put(accelerate.TYPE, "MULTI_GPU" if job.layout.world_size > 1 else "NO")
        writer.take("parallelism.data")
        if writer.take("parallelism.zero_stage"):
            writer.take("parallelism.shard_group")
            writer.lose("parallelism.zero_stage", f"outside FSDP and DeepSpeed there is no ZeRO stage {stage}")
    _hardware(writer)
    _precision(writer)
    if writer.take("training.compile"):
        writer.put(accelerate.BACKEND, "INDUCTOR")
    for key, where in (ELSEWHERE | SCRIPTS).items():
        writer.elsewhere(key, where)
    notices = (*export.notices, *writer.finish())
    return Written("accelerate", _yaml(writer.tree, export.header(KEYS.version, notices)), notices)


def _yaml(tree: dict[str, Any], header: str) -> str:
    return f"{header}\n{yaml.safe_dump(tree, sort_keys=False, default_flow_style=False)}"


def _hardware(writer: ConfigWriter) -> None:
    nodes, per_node = writer.take("hardware.nodes"), writer.take("hardware.gpus_per_node")
    writer.put(accelerate.MACHINES, nodes)
    writer.put(accelerate.PROCESSES, nodes * per_node)
    if nodes > 1:
        writer.remark("hardware.nodes", "accelerate launch is told on each node: --machine_rank, --main_process_ip")


def _precision(writer: ConfigWriter) -> None:
    recipe = writer.take("training.precision.recipe")
    writer.put(accelerate.PRECISION, WORDS.get(recipe, "no"))
    if recipe not in WORDS:
        writer.remark("training.precision", f"{recipe}: the script loads the model in that dtype (dtype=...)")


def _fsdp(writer: ConfigWriter) -> None:
    writer.put(accelerate.TYPE, "FSDP")
    writer.take("parallelism.zero_stage")
    group, data = writer.take("parallelism.shard_group"), writer.take("parallelism.data")
    tensor, context = writer.number("parallelism.tensor"), writer.number("parallelism.context")
    first, reshard = writer.take(FIRST) == 1, writer.take("parallelism.reshard_after_forward")
    writer.put(accelerate.VERSION_KEY, 1 if first else 2)
    if not first:
        writer.put(accelerate.RESHARD, reshard)
    writer.put(accelerate.WRAP, "TRANSFORMER_BASED_WRAP")
    sharded = writer.take("training.checkpoint.state_dict") == "sharded"  # the Trainer's own default is the full one
    writer.put(accelerate.STATE_DICT, "SHARDED_STATE_DICT" if sharded else "FULL_STATE_DICT")
    writer.put(accelerate.RANK0, writer.settings.get(PLACE) == "rank0")
    if writer.settings.get(PLACE) in ("rank0", "host"):
        writer.take(PLACE)
    writer.elsewhere(PLACE, "the script's: where it makes the model")
    _offload(writer)
    key = "training.activation_checkpointing"
    recompute = writer.settings[f"{key}.mode"] == "full" and writer.settings[f"{key}.every_n_layers"] == 1
    writer.put(accelerate.CHECKPOINTING, recompute)
    if recompute:
        writer.take(f"{key}.mode")
        writer.remark(f"{key}.mode", "leave TrainingArguments' gradient_checkpointing off: both would recompute twice")
    shard = max(1, group // context)
    if shard * context != group or data % shard:
        writer.lose("parallelism.shard_group", f"Accelerate's shard group is a multiple of context, not {group}")
    if first:
        hybrid = shard != data and shard == writer.number("hardware.gpus_per_node")
        word = ("HYBRID_SHARD" if reshard else "HYBRID_SHARD_ZERO2") if hybrid else "SHARD_GRAD_OP"
        writer.put(accelerate.STRATEGY, word if hybrid or not reshard else "FULL_SHARD")
        if tensor * context > 1 or (shard != data and not hybrid):
            writer.lose("parallelism.shard_group", "FSDP 1 shards over a node or over all, and has no other degrees")
    elif tensor * context > 1 or shard != data:
        writer.put(accelerate.REPLICATE, data // shard)
        writer.put(accelerate.SHARD, shard)
        writer.rows(KEYS.rows["degrees"])


def _offload(writer: ConfigWriter) -> None:
    """FSDP offloads parameters, gradients and states together, or nothing; a plan need not name the states, too."""
    places = writer.take("training.offload.parameters"), writer.take("training.optimizer.offload")
    writer.put(accelerate.OFFLOAD, places in (("cpu", "none"), ("cpu", "cpu")))
    if places not in (("none", "none"), ("cpu", "none"), ("cpu", "cpu")):
        writer.lose(
            "training.offload.parameters", f"FSDP offloads parameters and states to the CPU together, not {places}"
        )


def _deepspeed(writer: ConfigWriter) -> None:
    writer.put(accelerate.TYPE, "DEEPSPEED")
    writer.take("parallelism.data")
    writer.rows(KEYS.rows["engine"])
    third = writer.number("parallelism.zero_stage") == 3
    writer.put(accelerate.INIT, third and writer.settings.get(PLACE) != "host")
    if third and writer.settings.get(PLACE) == "host":
        writer.take(PLACE)
    if third and writer.settings.get(GATHERS):
        writer.put(accelerate.GATHER, writer.take(GATHERS))
    if writer.number("parallelism.context") > 1:  # Ulysses, as DeepSpeed cuts sequences
        writer.put(f"{accelerate.PARALLEL}sp_size", writer.take("parallelism.context"))
        writer.put(f"{accelerate.PARALLEL}sp_backend", "deepspeed")
    clip = writer.take("training.clip_grad_norm")
    writer.put(accelerate.ENGINE_CLIP, 1.0 if clip else 0.0)
    for name in writer.settings:
        if name.startswith("training.options.") and name != GATHERS:
            writer.lose(name, "only a DeepSpeed JSON config has it: export --to deepspeed")
