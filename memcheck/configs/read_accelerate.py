"""Reads an Accelerate YAML config, the launcher's half of a job.

Read at accelerate 1.15.0: ``commands/config/config_args.py`` (ClusterConfig), ``commands/launch.py``,
``utils/dataclasses.py`` (FullyShardedDataParallelPlugin, DeepSpeedPlugin) and ``parallelism_config.py``.
"""

from __future__ import annotations

from memcheck.configs.config_file import ConfigFile, any_key, load_json, parse_text
from memcheck.configs.draft import Draft, Reader
from memcheck.configs.key_table import key_table
from memcheck.configs.read_deepspeed import below_stage_three, read_deepspeed
from memcheck.configs.trainer_split import missing, named_files, note_units
from memcheck.configs.types import ConfigError, ReadConfig
from memcheck.edge.opener import is_file

KEYS = key_table("accelerate")


TYPE = "distributed_type"
PROCESSES = "num_processes"
MACHINES = "num_machines"
PRECISION = "mixed_precision"
OLD_PRECISION = "fp16"
FP8_BACKEND = "fp8_config.backend"

FSDP = "fsdp_config"
VERSION_KEY = f"{FSDP}.fsdp_version"
STRATEGY = f"{FSDP}.fsdp_sharding_strategy"
RESHARD = f"{FSDP}.fsdp_reshard_after_forward"
OFFLOAD = f"{FSDP}.fsdp_offload_params"
STATE_DICT = f"{FSDP}.fsdp_state_dict_type"
RANK0 = f"{FSDP}.fsdp_cpu_ram_efficient_loading"
CPU = "use_cpu"
CHECKPOINTING = f"{FSDP}.fsdp_activation_checkpointing"
WRAP = f"{FSDP}.fsdp_auto_wrap_policy"
WRAPPED = f"{FSDP}.fsdp_transformer_layer_cls_to_wrap"

PARALLEL = "parallelism_config.parallelism_config_"
REPLICATE = f"{PARALLEL}dp_replicate_size"
SHARD = f"{PARALLEL}dp_shard_size"

DEEPSPEED = "deepspeed_config"
OFFLOAD_PARAMETERS = f"{DEEPSPEED}.offload_param_device"
INIT = f"{DEEPSPEED}.zero3_init_flag"
GATHER = f"{DEEPSPEED}.zero3_save_16bit_model"
DEEPSPEED_FILE = f"{DEEPSPEED}.deepspeed_config_file"
ENGINE_CLIP = f"{DEEPSPEED}.gradient_clipping"

BACKEND = "dynamo_config.dynamo_backend"
OLD_BACKEND = "dynamo_backend"


LAUNCHED = (
    *(row.path for row in KEYS.rows["engine"]),
    *(name for names in KEYS.irrelevant.values() for name in names if name[-1] != "."),
    *(INIT, GATHER, DEEPSPEED_FILE, ENGINE_CLIP),
    *(VERSION_KEY, STRATEGY, RESHARD, OFFLOAD, STATE_DICT, RANK0, CHECKPOINTING, WRAP),
    *(f"{FSDP}.fsdp_{name}" for name in ("backward_prefetch", "forward_prefetch", "min_num_params")),
)
"""Keys of the sections that are arguments of ``accelerate launch``, too, under their last names."""


NOT_GPU = {"MULTI_CPU", "MULTI_XPU", "MULTI_HPU", "MULTI_NPU", "MULTI_MLU", "MULTI_SDAA", "MULTI_MUSA", "XLA", "TPU"}
STAGE, GROUP = "parallelism.zero_stage", "parallelism.shard_group"
RESHARDED = "parallelism.reshard_after_forward"


def read_accelerate(config: ConfigFile, world: int | None) -> ReadConfig:
    """The settings of one launch, with those of the DeepSpeed file that it names."""
    draft = Draft(config, "accelerate", KEYS.title)
    written = config.take(TYPE)  # `NO` without quotes is false in YAML 1.1
    kind = "NO" if written is False else str(written or "").upper()
    draft.derive("training.framework", "huggingface", "the config is Accelerate's")
    if config.take(CPU) in (True, "true", "True"):
        draft.refuse(CPU, "`use_cpu: true` runs on no GPU")
    _hardware(draft)
    if world is None:
        world = _whole(draft, "hardware.nodes", 1) * _whole(draft, "hardware.gpus_per_node", 0) or None
    draft.unmodelled(KEYS.unmodelled)
    engine: ReadConfig | None = None
    if kind == "DEEPSPEED":
        draft.rows(KEYS.rows["degrees"])
        engine = _deepspeed(draft, world)
    elif kind == "FSDP":
        draft.rows(KEYS.rows["degrees"])
        _fsdp(draft)
    elif kind in ("NO", "MULTI_GPU"):
        draft.rows(KEYS.rows["degrees"] if kind == "MULTI_GPU" else ())  # utils/launch.py, prepare_multi_gpu_env
        draft.set(STAGE, 0, TYPE)
        _see_section(config, FSDP)
    elif kind in NOT_GPU:
        draft.refuse(TYPE, f"`{kind}` runs on no GPU that memcheck models")
    else:
        draft.refuse(TYPE, f"`{kind}` has no memory model here", "use FSDP, DEEPSPEED, MULTI_GPU or NO")
    if kind != "DEEPSPEED":
        _see_section(config, DEEPSPEED)
    _see_section(config, PARALLEL.rpartition(".")[0])
    _precision(draft, engine)
    backend = config.take(BACKEND) or config.take(OLD_BACKEND)
    config.see(BACKEND, OLD_BACKEND)
    if backend is not None and str(backend).upper() not in ("NO", "EAGER"):
        draft.set("training.compile", True, BACKEND if config.has(BACKEND) else OLD_BACKEND)
    _trainer(draft)
    draft.irrelevant(KEYS.irrelevant)
    reading = draft.finish()
    return reading if engine is None else _joined(reading, engine)


def _whole(draft: Draft, key: str, usual: int) -> int:
    value = draft.value(key)
    return value if isinstance(value, int) else usual


def _trainer(draft: Draft) -> None:
    """What transformers' TrainingArguments say, and this half of the job does not."""
    why = "TrainingArguments says; its default"
    for key, value in TRAINER.items():
        if key not in draft.settings and not any(each.startswith(f"{key}.") for each in draft.settings):
            draft.assume(key, value, why)


TRAINER: dict[str, object] = {
    "training.gradient_accumulation_steps": 1,
    "training.optimizer": "adamw",
    "training.activation_checkpointing": "none",
}


def _see_section(config: ConfigFile, name: str) -> None:
    """Accelerate writes sections of other launchers, too; only that of ``distributed_type`` counts."""
    config.see(*(key for key in config.values if key.startswith(f"{name}.") or key == name))


def _hardware(draft: Draft) -> None:
    machines = draft.whole(MACHINES, "hardware.nodes") or 1
    processes = draft.whole(PROCESSES, "hardware.gpus_per_node")
    if draft.config.has(MACHINES):
        draft.set("hardware.nodes", machines, MACHINES)
    if processes is None:
        return
    if processes < 1 or processes % machines:
        message = f"{processes} processes do not divide over {machines} machines"
        draft.refuse(PROCESSES, message, keys=("hardware.gpus_per_node",))
        return
    draft.set("hardware.gpus_per_node", processes // machines, PROCESSES)


def _fsdp(draft: Draft) -> None:
    config = draft.config
    version = draft.whole(VERSION_KEY) or 1
    if version in (1, 2):
        place = VERSION_KEY if config.has(VERSION_KEY) else TYPE
        draft.set("training.options.fsdp_version", version, place)
    wrap = str(config.take(WRAP) or "NO_WRAP").upper()
    note_units(draft, WRAPPED, str(config.values.get(WRAPPED) or ""))
    if wrap == "NO_WRAP":
        name = WRAP if config.has(WRAP) else TYPE
        draft.note(name, "without a wrap policy the whole model is one unit; memcheck shards block by block")
    _strategy(draft)
    replicate, shard = draft.whole(REPLICATE, GROUP) or 1, draft.whole(SHARD, GROUP) or 1
    context = draft.value("parallelism.context") or 1
    if max(shard, replicate) > 1 and draft.value(STAGE) == 3 and isinstance(context, int):
        draft.set(GROUP, shard * context, SHARD if shard > 1 else REPLICATE)
    if config.take(OFFLOAD) is True:
        draft.set("training.offload.parameters", "cpu", OFFLOAD)
        draft.set("training.optimizer.offload", "cpu", OFFLOAD)
    if config.take(RANK0) in (True, "true", "True") and draft.value(STAGE) == 3:
        # utils/fsdp_utils.py: rank 0 of a node loads, the others make the model on meta and receive it
        draft.set("training.initialization.place", "rank0", RANK0)
    _state_dict(draft)
    recompute = config.take(CHECKPOINTING)
    if recompute is True:
        draft.set("training.activation_checkpointing.mode", "full", CHECKPOINTING)
    prefetch = str(config.take(f"{FSDP}.fsdp_backward_prefetch") or "BACKWARD_PRE").upper()
    if prefetch != "BACKWARD_PRE":
        draft.note(f"{FSDP}.fsdp_backward_prefetch", f"`{prefetch}` is not modelled: memcheck gathers one ahead")


def _state_dict(draft: Draft) -> None:
    """How the state is saved; the local one of FSDP 1 is every rank's part, too."""
    written = draft.config.take(STATE_DICT)
    kind = KEYS.words["state_dicts"].get(str(written).upper())
    if kind is not None:
        draft.set("training.checkpoint.state_dict", kind, STATE_DICT)
    elif written is not None:
        draft.note(STATE_DICT, f"`{written}` is not modelled: {' or '.join(KEYS.words['state_dicts'])}")


def _strategy(draft: Draft) -> None:
    """``fsdp_sharding_strategy`` of FSDP 1, ``fsdp_reshard_after_forward`` of both."""
    config = draft.config
    reshard, strategy = config.take(RESHARD), config.take(STRATEGY)
    path = RESHARD if reshard is not None else STRATEGY if strategy is not None else TYPE
    written = reshard if reshard is not None else strategy if strategy is not None else "FULL_SHARD"
    if isinstance(written, bool) or str(written).lower() in ("true", "false"):
        draft.set(STAGE, 3, path)
        draft.set(RESHARDED, str(written).lower() == "true", path)
        return
    word = KEYS.words["strategies"].get(str(written), str(written).upper())
    if word == "NO_SHARD":
        draft.set(STAGE, 0, path)
    elif word in ("FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"):
        draft.set(STAGE, 3, path)
        draft.set(RESHARDED, word in ("FULL_SHARD", "HYBRID_SHARD"), path)
        per_node = draft.value("hardware.gpus_per_node")
        if word.startswith("HYBRID") and isinstance(per_node, int):
            draft.set(GROUP, per_node, path)  # FSDP 1 shards within a node and replicates between them
        elif word.startswith("HYBRID"):
            draft.refuse(path, f"`{word}` shards within a node", "state --gpus-per-node", (GROUP,))
    else:
        draft.refuse(
            path, f"`{written}` is no sharding strategy", ", ".join(KEYS.words["strategies"].values()), (STAGE,)
        )


def _deepspeed(draft: Draft, world: int | None) -> ReadConfig | None:
    config = draft.config
    _see_section(config, FSDP)
    draft.set("training.framework", "deepspeed", TYPE)
    name = config.take(DEEPSPEED_FILE)
    if name is None:
        draft.rows(KEYS.rows["engine"])
        below_stage_three(draft, OFFLOAD_PARAMETERS)
        _model_at_either_end(draft, draft.value(STAGE))
        clip = config.take(ENGINE_CLIP)
        if clip is not None:
            draft.set("training.clip_grad_norm", str(clip) not in ("0", "0.0", "none"), ENGINE_CLIP)
        return None
    config.see(*(row.path for row in KEYS.rows["engine"]), ENGINE_CLIP)  # the file says it (utils/dataclasses.py)
    for path in named_files(config, str(name)):
        if is_file(path):
            try:
                found = read_deepspeed(load_json(path, parse_text(path, config.read(path))), world)
                stage = found.settings.get(STAGE)
                _model_at_either_end(draft, None if stage is None else stage.value)
                return found  # noqa: TRY300
            except ConfigError as error:
                draft.refuse(DEEPSPEED_FILE, error.message, error.help)
                return None
    help = f"mend the path, or state how the job is split: --set {STAGE}=3"
    draft.refuse(DEEPSPEED_FILE, missing(config, str(name)), help, (STAGE,))
    return None


def _model_at_either_end(draft: Draft, stage: object) -> None:
    """How ZeRO 3 makes the model and saves it: ``zero3_init_flag`` and ``zero3_save_16bit_model``."""
    config = draft.config
    flag, gather = config.take(INIT), config.take(GATHER)
    if stage != 3:
        return
    if flag in (False, "false", "False"):
        draft.set("training.initialization.place", "host", INIT)
    if gather in (True, "true", "True"):
        draft.set("training.options.stage3_gather_16bit_weights_on_model_save", True, GATHER)


def _precision(draft: Draft, engine: ReadConfig | None) -> None:
    config = draft.config
    key = "training.precision"
    written, old = config.take(PRECISION), config.take(OLD_PRECISION)
    if written is None and old in (True, "true", "True"):  # config_args.py: what configs of 2021 say
        draft.set(key, KEYS.words["recipes"]["fp16"], OLD_PRECISION)
        return
    if str(config.take(FP8_BACKEND)).upper() == "MSAMP" and str(written).lower() == "fp8":
        message = "MS-AMP's weights, gradients and states of 8 bits have no memory model here"
        draft.refuse(FP8_BACKEND, message, "TE and AO have one", (key,))
        return
    word = "no" if written is False else "" if written is None else str(written).lower()
    if word in KEYS.words["recipes"]:
        draft.set(key, KEYS.words["recipes"][word], PRECISION)
    elif engine is not None and key in engine.settings and not engine.settings[key].assumed:
        return
    elif word in ("no", ""):
        shown = f"`{PRECISION}: no`" if word else "the config"
        help = "state the dtypes: --set training.precision=bf16-mixed (or fp32, bf16-pure)"
        path = PRECISION if word else TYPE
        draft.refuse(path, f"{shown} leaves the precision to the script and its model", help, (key,))
    else:
        draft.refuse(PRECISION, f"`{written}` is no precision", "bf16, fp16, fp8 or no", (key,))


def _joined(launch: ReadConfig, engine: ReadConfig) -> ReadConfig:
    """What the launcher says and what the engine's own file says; the launcher's degrees and precision win."""
    stated = {key: each for key, each in launch.settings.items() if not each.assumed}
    settings = {**engine.settings, **stated}
    settled = tuple(each for each in engine.problems if not any(key in launch.settings for key in each.keys))
    return launch._replace(
        settings=settings,
        notes=launch.notes + engine.notes,
        problems=launch.problems + settled,
        sources={**launch.sources, **engine.sources},
    )


READER = Reader(recognise=any_key("distributed_type"), read=read_accelerate)
