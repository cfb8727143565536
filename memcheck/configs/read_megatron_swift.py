"""Reads a launch of ``megatron sft`` or ``megatron pt``: ms-swift over Megatron-Core.

A model's tower is frozen, and adapters leave it alone, unless the launch says not. Read at ms-swift 3602360a of August
2026 (``swift/megatron/arguments/*.py``, ``swift/megatron/utils/*.py``) and mcore-bridge 1.6.5
(``config/model_config.py``, ``model/gpt_model.py``).
"""

from __future__ import annotations

from memcheck.configs import read_megatron as megatron_keys
from memcheck.configs import trainer_parts as parts
from memcheck.configs.config_file import ConfigFile
from memcheck.configs.draft import Draft, Reader
from memcheck.configs.key_table import key_table
from memcheck.configs.launch_lines import swift_training_alone
from memcheck.configs.pictures import NUMBER, named_data
from memcheck.configs.read_ms_swift import environment, longest_row, megatron_command
from memcheck.configs.trainer_parts import architecture_named, known_architecture, on, text, words
from memcheck.configs.trainer_script import spelled_with_underscores
from memcheck.configs.types import KeyRow, ReadConfig
from memcheck.errors import UnsupportedError
from memcheck.frameworks.megatron.profile import FRAMEWORK as MEGATRON
from memcheck.frameworks.megatron.stages import stages_of_layout
from memcheck.models.types import Moe

KEYS = key_table("megatron-swift")


MODEL = "model"

SETTLED = (*key_table("megatron").names["settled"], "attention_backend", "moe_router_dtype", "mtp_num_layers")
"""Options that the plan says with a key of its own, or that only code with several of them can read."""
VIRTUAL = "microbatch_group_size_per_virtual_pipeline_stage"
OPTIONS = (
    *(
        KeyRow(row.key.rpartition(".")[2], row.key, row.kind)
        for row in megatron_keys.OPTIONS
        if row.key.rpartition(".")[2] not in SETTLED
    ),
    KeyRow("microbatch_group_size_per_vp_stage", f"training.options.{VIRTUAL}"),
)
LISTS = frozenset(
    {*(name for name, types in MEGATRON.options.items() if list in types), *key_table("transformers").names["lists"]}
)

OFF = (None, False, "false", "False", "none", "None", 0, 0.0, "0", "0.0", "", "[]")
"""Values of the above that ask for nothing."""


def recognise(config: ConfigFile) -> str:
    """The key that shows that a config is Megatron-SWIFT's; empty where none does.

    The config has a model with ``megatron sft`` or with two of Megatron's keys, or that command with one such key.
    """
    named = config.has(MODEL) and isinstance(config.values[MODEL], str)
    found = [name for name in KEYS.evidence[0] if config.has(name)]
    if named and (megatron_command(config) or len(found) > 1):
        return MODEL
    return found[0] if found and megatron_command(config) else ""


PARTS = {"freeze_vit": "vision", "freeze_aligner": "projector"}


def tower(draft: Draft) -> None:
    """Freeze the tower of a model that has one, and ask how many pictures a sample of such data has."""
    config, found = draft.config, architecture_named(draft)
    if found is None or (found.vision is None and not found.others):
        return
    adapters = draft.value("training.method") == "lora"
    key = "training.lora.parts" if adapters else "training.freeze"
    if config.has("freeze_llm") and on(draft, "freeze_llm"):
        draft.refuse("freeze_llm", "`freeze_llm`: a tower that is trained has no memory model here", keys=(key,))
        return
    for name in PARTS:
        if config.has(name) and not on(draft, name):
            draft.refuse(name, f"`{name}: false`: a tower that is trained has no memory model here", keys=(key,))
            return
    path = next((name for name in PARTS if config.has(name)), "")
    what: list[object] = ["language"] if adapters else list(PARTS.values())
    if path:
        draft.set(key, what, path)
    else:
        draft.assume(key, what)
    if named_data(draft, ("dataset",)):
        draft.ask(NUMBER, "how many pictures a sample has", f"where samples are text alone: --set {NUMBER}=0")


STAGE, OPTION, LORA = "parallelism.zero_stage", "training.options.", "training.lora."
STAGES = "parallelism.virtual_stages"


def read_megatron_swift(config: ConfigFile, world: int | None) -> ReadConfig:
    """The settings of one job."""
    draft = Draft(config, "megatron-swift", KEYS.title)
    spelled_with_underscores(config)
    draft.derive("training.framework", "megatron", "Megatron-SWIFT runs Megatron-Core")
    environment(draft, key_table("ms-swift").words["environment"])
    parts.model(draft, MODEL)
    _converted(draft)
    if not config.has(MODEL) and "model.name" not in draft.settings:
        draft.refuse("", "the launch names no model", "name it: --model NAME", ("model",))
    _refuse(draft)
    draft.rows((*KEYS.rows["layout"], *OPTIONS))
    mixes = _mixes(draft)
    _layout(draft, mixes=mixes)
    _length(draft)
    _optimizer(draft)
    _precision(draft)
    _options(draft, mixes=mixes)
    _recompute(draft)
    _method(draft)
    tower(draft)
    draft.irrelevant(key_table("transformers").irrelevant)
    draft.irrelevant(key_table("ms-swift").irrelevant)
    draft.irrelevant(KEYS.irrelevant)
    draft.harmless((), ("wandb_", "swanlab_", "muon_"))
    return draft.finish()


def _converted(draft: Draft) -> None:
    """A launch that names a checkpoint in Megatron's form alone: `swift export` calls its folder as the model is called
    (``swift/arguments/export_args.py``, ``-mcore``).
    """
    path = next((name for name in ("mcore_model", "load") if draft.config.has(name)), "")
    folder = text(draft, path).rstrip("/").rpartition("/")[2]
    name = folder.removesuffix("-mcore")
    if not draft.config.has(MODEL) and name != folder and known_architecture(name) is not None:
        draft.assume("model.name", name, f"the name of the folder `{folder}`, which `{path}` names")


def _mixes(draft: Draft) -> bool:
    """Whether the model has experts; one that is not known is refused by the plan's own check."""
    found = architecture_named(draft)
    return found is not None and any(isinstance(block.mlp, Moe) for block, _ in found.blocks)


def _refuse(draft: Draft) -> None:
    config = draft.config
    kind = text(draft, "rlhf_type").lower()
    if kind or megatron_command(config) == "rlhf":
        kind = kind or "dpo"
        rolls = (
            "generates between its steps" if kind in KEYS.names["rollouts"] else "compares preferences or rewards them"
        )
        path = "rlhf_type" if config.has("rlhf_type") else ""
        draft.refuse(path, f"`rlhf_type: {kind}` {rolls} under Megatron-Core, which has no memory model here")
    task = text(draft, "task_type").lower()
    if task not in ("", "causal_lm"):
        draft.refuse("task_type", f"`task_type: {task}`: a head under Megatron-Core has no memory model here")
    for name, what in KEYS.refused.items():
        written = config.take(name)
        if written not in OFF and written != []:
            draft.refuse(name, f"`{name}`: {what}: that has no memory model here")
    if text(draft, "bridge_backend") == "megatron-bridge":
        draft.refuse("bridge_backend", "`bridge_backend: megatron-bridge` takes its own defaults, which are not read")


def _layout(draft: Draft, *, mixes: bool) -> None:
    config = draft.config
    if _degree(draft, "tensor") > 1:
        path = "sequence_parallel"
        if config.has(path):
            draft.set("parallelism.sequence", on(draft, path), path)
        else:
            draft.assume("parallelism.sequence", False)
    config.see("sequence_parallel")
    if mixes:
        draft.rows((KEYS.row("expert_tensor_parallel_size"),))
    config.see(KEYS.row("expert_tensor_parallel_size").path)
    chunks = _chunks(draft)
    if _degree(draft, "pipeline") > 1:
        key, schedule = "parallelism.pipeline_schedule", "interleaved-1f1b" if chunks > 1 else "1f1b"
        draft.derive(key, schedule, "as its virtual stages say") if chunks > 1 else draft.assume(key, schedule)


def _chunks(draft: Draft) -> int:
    """Stages of a pipeline rank: as many as are said, or as a layout names."""
    path, written = "virtual_pipeline_model_parallel_size", "pipeline_model_parallel_layout"
    pipeline = _degree(draft, "pipeline")
    stated = draft.whole(path, STAGES) or 1
    layout = draft.value(f"{OPTION}{written}")
    if layout is not None and pipeline > 1:
        try:
            stated, path = len(stages_of_layout(layout)) // pipeline, written
        except UnsupportedError as error:
            draft.refuse(written, error.message, error.help, (STAGES,))
    if stated > 1 and pipeline > 1:
        draft.set(STAGES, stated, path)
    return stated


def _degree(draft: Draft, name: str) -> int:
    value = draft.value(f"parallelism.{name}")
    return value if isinstance(value, int) and value > 0 else 1


def _length(draft: Draft) -> None:
    """A packed row is as long as it may be; rows without padding lie end to end, each at most as long."""
    path, packed = longest_row(draft)
    parts.whole(draft, KeyRow(path, "training.sequence_length"), None)
    draft.ask("training.sequence_length", "how long a sequence is", "state it: --sequence-length 4096")
    free = "padding_free"
    if draft.config.has(free) and not packed:
        draft.set(f"{OPTION}{free}", not parts.off(draft, free), free)
    else:
        draft.assume(f"{OPTION}{free}", True, "packed rows have no padding" if packed else "")
    draft.config.see(free)
    laid = draft.value(f"{OPTION}{free}") is True
    mask = f"{OPTION}create_attention_mask_in_dataloader"
    draft.assume(mask, not laid, "rows without padding need no mask" if laid else "its collator makes a mask")
    said = "rows are packed" if packed else "every row is as long as it may be: an upper bound"
    draft.assume("training.sequences", "packed" if packed else "unpacked", said)


def _optimizer(draft: Draft) -> None:
    config, key = draft.config, "training.optimizer.name"
    draft.rows((KEYS.row("optimizer"),))
    if not config.has(KEYS.row("optimizer").path):
        draft.assume(key, "adamw")
    name, strategy = "use_distributed_optimizer", text(draft, "data_parallel_sharding_strategy")
    if on(draft, "use_megatron_fsdp"):
        stage = key_table("megatron").words["strategies"].get(strategy or "optim_grads_params", 3)
        draft.set(STAGE, stage, "data_parallel_sharding_strategy" if strategy else "use_megatron_fsdp")
        if stage in (1, 2):
            draft.set(f"{OPTION}use_megatron_fsdp", True, "use_megatron_fsdp")
    elif draft.value(key) == "muon":
        draft.assume(STAGE, 0, "ms-swift turns the distributed optimizer off for Muon")
    elif config.has(name):
        draft.set(STAGE, 0 if parts.off(draft, name) else 1, name)
    else:
        draft.assume(STAGE, 1, "the distributed optimizer is ms-swift's default")
    config.see(name)
    clip = config.take("clip_grad")
    if clip is None:
        draft.assume("training.clip_grad_norm", True)
    else:
        draft.set("training.clip_grad_norm", str(clip) not in ("0", "0.0"), "clip_grad")
    offload, share = f"{OPTION}optimizer_cpu_offload", f"{OPTION}optimizer_offload_fraction"
    if draft.value(offload) is True and float(str(draft.value(share) or 1)) == 1:
        del draft.settings[offload]  # a plan says it with a key of its own; a part stays so
        draft.settings.pop(share, None)
        draft.set("training.optimizer.offload", "cpu", "optimizer_cpu_offload")


def _precision(draft: Draft) -> None:
    """``_init_mixed_precision``: bf16 unless the model is of another dtype; fp32 becomes fp16."""
    config, key = draft.config, "training.precision"
    dtype, fp8 = (
        key_table("transformers").words["dtypes"].get(text(draft, "torch_dtype").lower(), ""),
        config.take("fp8_format"),
    )
    path = next((name for name in ("bf16", "fp16") if on(draft, name)), "")
    config.see("bf16", "fp16")
    wide = path == "bf16" or (not path and dtype in ("", "bf16"))
    if fp8 is not None:
        draft.set(f"{OPTION}fp8_format", str(fp8), "fp8_format")
    if fp8 is not None and wide:
        draft.set(key, "fp8-mixed", "fp8_format")
    elif path or dtype:
        draft.set(key, "bf16-mixed" if wide else "fp16-mixed", path or "torch_dtype")
    else:
        draft.assume(key, "bf16-mixed", "no torch_dtype: the model's own, which is taken for bfloat16")


def _options(draft: Draft, *, mixes: bool) -> None:
    config = draft.config
    for name, (value, why) in KEYS.words["defaults"].items():
        if f"{OPTION}{name}" not in draft.settings and (mixes or name not in KEYS.names["experts"]):
            draft.assume(f"{OPTION}{name}", value, why)
    config.see("bridge_backend")
    router = text(draft, "moe_router_dtype").lower()
    if router not in ("", "none"):
        draft.set(f"{OPTION}moe_router_dtype", router, "moe_router_dtype")
    elif mixes and not router:
        draft.assume(f"{OPTION}moe_router_dtype", "fp32")
    backend = text(draft, "attention_backend")
    if backend:
        draft.set(f"{OPTION}attention_backend", KEYS.words["backends"].get(backend, backend), "attention_backend")
    else:
        draft.assume(f"{OPTION}attention_backend", "flash")
    path = "bias_activation_fusion"
    if config.has(path):
        for name in ("bias_swiglu_fusion", "bias_gelu_fusion"):
            draft.set(f"{OPTION}{name}", on(draft, path), path)
    if not mixes:
        config.see(*KEYS.names["experts"])


def _recompute(draft: Draft) -> None:
    """``selective``, of the attention's core alone, unless told otherwise."""
    key, path = parts.RECOMPUTE, "recompute_granularity"
    mode, modules = text(draft, path).lower(), words(draft, "recompute_modules")
    if mode:
        draft.set(f"{key}.mode", mode, path)
    else:
        draft.assume(f"{key}.mode", "selective")
    if modules:
        draft.set(f"{key}.modules", modules, "recompute_modules")
    elif mode in ("", "selective"):
        draft.assume(f"{key}.modules", ["core_attn"])


def _method(draft: Draft) -> None:
    """All weights, or adapters of mcore-bridge, which take its own classes' names."""
    config, method = draft.config, "training.method"
    path = next(
        (name for name in key_table("ms-swift").names["tuners"] if config.has(name)),
        key_table("ms-swift").names["tuners"][0],
    )
    kind, folder = text(draft, path).lower() or "full", next((n for n in KEYS.names["folders"] if config.has(n)), "")
    config.see(*key_table("ms-swift").names["tuners"], *KEYS.names["folders"])
    if kind == "full" and not folder:
        draft.set(method, "full", path)
        config.see("lora_rank", "target_modules", "lora_dropout", "lora_bias")
        return
    if folder:
        help = f"state it: --set {LORA}rank=16"
        draft.refuse(folder, f"`{folder}`: rank and dropout are those of the adapters there", help, (f"{LORA}rank",))
    if kind not in ("lora", "full"):
        draft.refuse(path, f"`{path}: {kind}` has no memory model here", keys=(method,))
        return
    draft.set(method, "lora", path)
    draft.rows((KeyRow("lora_rank", f"{LORA}rank", default=8), KeyRow("lora_dropout", f"{LORA}dropout", "number")))
    if not config.has("lora_dropout"):
        draft.assume(f"{LORA}dropout", 0.05)
    named = words(draft, "target_modules")
    for each in named:
        if each in KEYS.names["targets_refused"]:
            message = f"adapters of `{each}` have no memory model here"
            draft.refuse("target_modules", message, keys=(f"{LORA}target_modules",))
    if named and named != ["all-linear"]:
        draft.set(f"{LORA}target_modules", named, "target_modules")
    elif named:
        draft.set(f"{LORA}target_modules", "all-linear", "target_modules")
    else:
        draft.assume(f"{LORA}target_modules", "all-linear")
    if text(draft, "lora_bias").lower() not in ("", "none"):
        draft.refuse("lora_bias", "memcheck has no memory model of biases trained with adapters")


READER = Reader(recognise=recognise, read=read_megatron_swift, lists=LISTS, trains=swift_training_alone)
