"""A plan as a torchtitan TOML job."""

from __future__ import annotations

import json
from typing import Any

from memcheck.configs import read_torchtitan as torchtitan
from memcheck.configs.config_writer import ConfigWriter, Export, neutral, settings_of
from memcheck.configs.read_torchtitan import KEYS, flavor_of
from memcheck.configs.types import Written
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.models.types import Architecture

RECIPES = {"bf16-mixed": ("float32", "bfloat16"), "fp8-mixed": ("float32", "bfloat16"), "fp32": ("float32", "float32")}
RECIPES["bf16-pure"] = ("bfloat16", "bfloat16")
LAUNCHER = "torchrun starts as many processes: --nnodes N --nproc-per-node N"


def write(export: Export) -> Written:
    """The TOML of a job."""
    job = export.job
    writer = ConfigWriter(settings_of(job), neutral(FRAMEWORKS["torchtitan"], job.layout), KEYS.version)
    _model(writer, export)
    _sharding(writer)
    _batch(writer)
    _precision(writer)
    _checkpointing(writer)
    writer.rows((*KEYS.rows["rows"], KEYS.row("optimizer.early_step_in_backward")))
    if job.layout.pipeline > 1:
        writer.rows((KEYS.row("parallelism.pipeline_parallel_schedule"),))
        layers = job.architecture.num_layers if isinstance(job.architecture, Architecture) else job.architecture.layers
        _virtual(writer, layers)
    if writer.take("training.compile"):
        writer.put(KEYS.names["compile"][0], True)
        components = writer.take("training.options.components")
        writer.put(torchtitan.COMPILED_PARTS, ["model", "loss"] if components is None else list(components))
    if writer.take(KEYS.row("checkpoint.async_mode").key):
        writer.put(KEYS.names["saves"][0], True)
        writer.put(KEYS.row("checkpoint.async_mode").path, "async")
    if not writer.take("training.clip_grad_norm"):
        writer.lose("training.clip_grad_norm", "torchtitan always clips gradients")
    for key in ("hardware.nodes", "hardware.gpus_per_node"):
        writer.elsewhere(key, LAUNCHER)
    writer.elsewhere("training.expandable_segments", "PYTORCH_ALLOC_CONF, in the environment")
    if writer.settings.get("parallelism.sequence") is False and job.layout.tensor > 1:
        writer.lose("parallelism.sequence", "torchtitan always runs sequence parallelism with tensor parallelism")
    notices = (*export.notices, *writer.finish())
    return Written("torchtitan", toml(writer.tree, export.header(KEYS.version, notices)), notices)


def _model(writer: ConfigWriter, export: Export) -> None:
    attention = writer.take("training.attention")
    flavor = flavor_of(export.model, attention) if export.model else None
    if flavor is None:
        shown = f"`{export.model}`" if export.model else "this architecture"
        writer.lose("model", f"torchtitan has no flavor with the dimensions of {shown}; register one and name it here")
        return
    writer.put("model.name", flavor.name)
    writer.put("model.flavor", flavor.flavor)
    if (flavor.attention or "sdpa") != attention:
        has = flavor.attention or "sdpa"
        writer.lose("training.attention", f"torchtitan's {flavor.name} {flavor.flavor} runs {has}, not {attention}")


def _sharding(writer: ConfigWriter) -> None:
    stage = writer.take("parallelism.zero_stage")
    data, context = writer.take("parallelism.data"), writer.number("parallelism.context")
    group = writer.take("parallelism.shard_group")
    replicate, shard = data, 1
    if stage == 3:
        shard = max(1, group // context)
        replicate = data // shard
        pipeline = writer.number("parallelism.pipeline")
        reshard = writer.take("parallelism.reshard_after_forward")
        usual = pipeline == 1
        writer.put(torchtitan.RESHARD, "default" if reshard == usual else "always" if reshard else "never")
        if shard * replicate != data or shard * context != group:
            writer.lose("parallelism.shard_group", f"torchtitan's shard group is a multiple of context, not {group}")
    elif stage:
        writer.lose("parallelism.zero_stage", f"torchtitan has no ZeRO stage {stage}: it replicates or shards all")
    elif context > 1:
        writer.lose("parallelism.zero_stage", "torchtitan shards over the context group: context > 1 is FSDP")
    writer.put(KEYS.names["replicate"][0], replicate)
    writer.put(KEYS.names["shard"][0], shard)


def _batch(writer: ConfigWriter) -> None:
    micro, steps = writer.take("training.micro_batch_size"), writer.take("training.gradient_accumulation_steps")
    if writer.number("parallelism.pipeline") > 1:
        each = writer.take("training.options.micro_batches_per_run") or steps
        writer.put(KEYS.names["local_batch"][0], micro * each)
        writer.put(torchtitan.PIPELINE_BATCH, micro)
        writer.put(torchtitan.GLOBAL_BATCH, -1 if each == steps else micro * steps * writer.number("parallelism.data"))
        return
    writer.put(KEYS.names["local_batch"][0], micro)
    writer.put(torchtitan.GLOBAL_BATCH, micro * steps * writer.number("parallelism.data"))


def _precision(writer: ConfigWriter) -> None:
    recipe = writer.take("training.precision.recipe")
    if recipe not in RECIPES:
        writer.lose("training.precision", f"torchtitan has no {recipe}")
        return
    stored, compute = RECIPES[recipe]
    writer.put(torchtitan.STORED_DTYPE, stored)
    writer.put(torchtitan.COMPUTE_DTYPE, compute)
    if recipe == "fp8-mixed":
        writer.put(torchtitan.CONVERTERS, ["quantize.linear.float8"])


def _checkpointing(writer: ConfigWriter) -> None:
    key = "training.activation_checkpointing"
    mode, option = writer.take(f"{key}.mode"), writer.take("training.options.selective_ac_option")
    every = writer.take(f"{key}.every_n_layers") or 1
    if mode == "full" and every > 1:
        writer.put(torchtitan.CHECKPOINT_MODE, "selective")
        writer.put(torchtitan.CHECKPOINT_OPTION, str(every))
        return
    writer.put(torchtitan.CHECKPOINT_MODE, mode)
    if mode == "selective":
        writer.put(torchtitan.CHECKPOINT_OPTION, "op")
        if every > 1:
            writer.lose(f"{key}.every_n_layers", "torchtitan's per-operator recompute covers every block")
        if option not in (None, "op"):
            writer.lose("training.options.selective_ac_option", f"the plan says selective, and every {option} layers")


def _virtual(writer: ConfigWriter, layers: int) -> None:
    """torchtitan counts layers per stage, not stages per rank."""
    per_rank, pipeline = writer.take("parallelism.virtual_stages"), writer.number("parallelism.pipeline")
    if per_rank == (2 if writer.settings["parallelism.pipeline_schedule"] in KEYS.names["looped"] else 1):
        return
    fewer = ("training.options." + name.rpartition(".")[2] for name in (torchtitan.FEWER_FIRST, torchtitan.FEWER_LAST))
    weight = layers + sum(int(writer.settings.get(name, 1)) for name in fewer)  # type: ignore[call-overload]
    per_stage = -(-weight // (pipeline * per_rank))
    if -(-weight // per_stage) == pipeline * per_rank:
        writer.put(torchtitan.LAYERS_PER_STAGE, per_stage)
    else:
        message = (
            f"no number of layers per stage makes {per_rank} stages on each of {pipeline} ranks of {layers} layers"
        )
        writer.lose("parallelism.virtual_stages", message)


def toml(tree: dict[str, Any], header: str) -> str:
    """Nested tables as TOML."""
    return "\n".join([header, *_tables(tree, "")]).rstrip("\n") + "\n"


def _tables(tree: dict[str, Any], prefix: str) -> list[str]:
    scalars = {name: value for name, value in tree.items() if not isinstance(value, dict)}
    lines = [f"[{prefix}]", *(f"{name} = {_toml(value)}" for name, value in scalars.items()), ""] if scalars else []
    for name, value in tree.items():
        if isinstance(value, dict):
            lines += _tables(value, f"{prefix}.{name}" if prefix else name)
    return lines


def _toml(value: object) -> str:
    """JSON's scalars and lists are TOML's."""
    return json.dumps(value, ensure_ascii=False)
