"""A plan as a torchtitan TOML job."""

from __future__ import annotations

import json
from typing import Any

from memcheck.configs import read_torchtitan as torchtitan
from memcheck.configs.config_writer import Export, Sheet, neutral, settings_of
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
    sheet = Sheet(settings_of(job), neutral(FRAMEWORKS["torchtitan"], job.layout), KEYS.version)
    _model(sheet, export)
    _sharding(sheet)
    _batch(sheet)
    _precision(sheet)
    _checkpointing(sheet)
    sheet.rows((*KEYS.rows["rows"], KEYS.row("optimizer.early_step_in_backward")))
    if job.layout.pipeline > 1:
        sheet.rows((KEYS.row("parallelism.pipeline_parallel_schedule"),))
        layers = job.architecture.num_layers if isinstance(job.architecture, Architecture) else job.architecture.layers
        _virtual(sheet, layers)
    if sheet.take("training.compile"):
        sheet.put(KEYS.names["compile"][0], True)
        components = sheet.take("training.options.components")
        sheet.put(torchtitan.COMPILED_PARTS, ["model", "loss"] if components is None else list(components))
    if sheet.take(KEYS.row("checkpoint.async_mode").key):
        sheet.put(KEYS.names["saves"][0], True)
        sheet.put(KEYS.row("checkpoint.async_mode").path, "async")
    if not sheet.take("training.clip_grad_norm"):
        sheet.lose("training.clip_grad_norm", "torchtitan always clips gradients")
    for key in ("hardware.nodes", "hardware.gpus_per_node"):
        sheet.elsewhere(key, LAUNCHER)
    sheet.elsewhere("training.expandable_segments", "PYTORCH_ALLOC_CONF, in the environment")
    if sheet.settings.get("parallelism.sequence") is False and job.layout.tensor > 1:
        sheet.lose("parallelism.sequence", "torchtitan always runs sequence parallelism with tensor parallelism")
    notices = (*export.notices, *sheet.finish())
    return Written("torchtitan", toml(sheet.tree, export.header(KEYS.version, notices)), notices)


def _model(sheet: Sheet, export: Export) -> None:
    attention = sheet.take("training.attention")
    flavor = flavor_of(export.model, attention) if export.model else None
    if flavor is None:
        shown = f"`{export.model}`" if export.model else "this architecture"
        sheet.lose("model", f"torchtitan has no flavor with the dimensions of {shown}; register one and name it here")
        return
    sheet.put("model.name", flavor.name)
    sheet.put("model.flavor", flavor.flavor)
    if (flavor.attention or "sdpa") != attention:
        has = flavor.attention or "sdpa"
        sheet.lose("training.attention", f"torchtitan's {flavor.name} {flavor.flavor} runs {has}, not {attention}")


def _sharding(sheet: Sheet) -> None:
    stage = sheet.take("parallelism.zero_stage")
    data, context = sheet.take("parallelism.data"), sheet.number("parallelism.context")
    group = sheet.take("parallelism.shard_group")
    replicate, shard = data, 1
    if stage == 3:
        shard = max(1, group // context)
        replicate = data // shard
        pipeline = sheet.number("parallelism.pipeline")
        reshard = sheet.take("parallelism.reshard_after_forward")
        usual = pipeline == 1
        sheet.put(torchtitan.RESHARD, "default" if reshard == usual else "always" if reshard else "never")
        if shard * replicate != data or shard * context != group:
            sheet.lose("parallelism.shard_group", f"torchtitan's shard group is a multiple of context, not {group}")
    elif stage:
        sheet.lose("parallelism.zero_stage", f"torchtitan has no ZeRO stage {stage}: it replicates or shards all")
    elif context > 1:
        sheet.lose("parallelism.zero_stage", "torchtitan shards over the context group: context > 1 is FSDP")
    sheet.put(KEYS.names["replicate"][0], replicate)
    sheet.put(KEYS.names["shard"][0], shard)


def _batch(sheet: Sheet) -> None:
    micro, steps = sheet.take("training.micro_batch_size"), sheet.take("training.gradient_accumulation_steps")
    if sheet.number("parallelism.pipeline") > 1:
        each = sheet.take("training.options.micro_batches_per_run") or steps
        sheet.put(KEYS.names["local_batch"][0], micro * each)
        sheet.put(torchtitan.PIPELINE_BATCH, micro)
        sheet.put(torchtitan.GLOBAL_BATCH, -1 if each == steps else micro * steps * sheet.number("parallelism.data"))
        return
    sheet.put(KEYS.names["local_batch"][0], micro)
    sheet.put(torchtitan.GLOBAL_BATCH, micro * steps * sheet.number("parallelism.data"))


def _precision(sheet: Sheet) -> None:
    recipe = sheet.take("training.precision.recipe")
    if recipe not in RECIPES:
        sheet.lose("training.precision", f"torchtitan has no {recipe}")
        return
    stored, compute = RECIPES[recipe]
    sheet.put(torchtitan.STORED_DTYPE, stored)
    sheet.put(torchtitan.COMPUTE_DTYPE, compute)
    if recipe == "fp8-mixed":
        sheet.put(torchtitan.CONVERTERS, ["quantize.linear.float8"])


def _checkpointing(sheet: Sheet) -> None:
    key = "training.activation_checkpointing"
    mode, option = sheet.take(f"{key}.mode"), sheet.take("training.options.selective_ac_option")
    every = sheet.take(f"{key}.every_n_layers") or 1
    if mode == "full" and every > 1:
        sheet.put(torchtitan.CHECKPOINT_MODE, "selective")
        sheet.put(torchtitan.CHECKPOINT_OPTION, str(every))
        return
    sheet.put(torchtitan.CHECKPOINT_MODE, mode)
    if mode == "selective":
        sheet.put(torchtitan.CHECKPOINT_OPTION, "op")
        if every > 1:
            sheet.lose(f"{key}.every_n_layers", "torchtitan's per-operator recompute covers every block")
        if option not in (None, "op"):
            sheet.lose("training.options.selective_ac_option", f"the plan says selective, and every {option} layers")


def _virtual(sheet: Sheet, layers: int) -> None:
    """torchtitan counts layers per stage, not stages per rank."""
    per_rank, pipeline = sheet.take("parallelism.virtual_stages"), sheet.number("parallelism.pipeline")
    if per_rank == (2 if sheet.settings["parallelism.pipeline_schedule"] in KEYS.names["looped"] else 1):
        return
    fewer = ("training.options." + name.rpartition(".")[2] for name in (torchtitan.FEWER_FIRST, torchtitan.FEWER_LAST))
    weight = layers + sum(int(sheet.settings.get(name, 1)) for name in fewer)  # type: ignore[call-overload]
    per_stage = -(-weight // (pipeline * per_rank))
    if -(-weight // per_stage) == pipeline * per_rank:
        sheet.put(torchtitan.LAYERS_PER_STAGE, per_stage)
    else:
        message = (
            f"no number of layers per stage makes {per_rank} stages on each of {pipeline} ranks of {layers} layers"
        )
        sheet.lose("parallelism.virtual_stages", message)


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
