"""Reads Megatron-LM's arguments; what they do not say, the code at that commit decides.

Read at commit d98e8a64dd of August 2026 (``megatron/training/arguments.py``,
``core/transformer/transformer_config.py``, ``core/model_parallel_config.py``), and the names of
the configuration classes at megatron-core 0.16.1.
"""

from __future__ import annotations

from memcheck.configs import bridge_launch, megatron_bridge
from memcheck.configs.config_file import ConfigFile, any_key
from memcheck.configs.draft import Draft, Reader
from memcheck.configs.key_table import key_table
from memcheck.configs.launch_devices import allocator, allotted, machines
from memcheck.configs.types import KeyRow, ReadConfig
from memcheck.edge.screen import whole_number
from memcheck.errors import UnsupportedError
from memcheck.frameworks.megatron.profile import FRAMEWORK as MEGATRON
from memcheck.frameworks.megatron.stages import stages_of_layout
from memcheck.models.families.megatron_lm import DROPOUT, MODEL_TYPE
from memcheck.models.recurrent import GATED_DELTA_NET

KEYS = key_table("megatron")


MODEL = "model.architecture"
NAMED, PEFT = megatron_bridge.MODEL, megatron_bridge.PEFT


ENGINES = {
    "deepspeed_config": (
        "for Megatron-DeepSpeed write a plan: with pipeline or tensor parallelism `training.framework: megatron`, "
        "without both `deepspeed` with the engine's `parallelism.zero_stage`"
    )
}
"""What to do about a job of another engine, by the argument that tells it."""


def underscored(argument: str) -> str:
    """``--hidden-size`` as the plan and the configuration classes spell it."""
    return argument.replace("-", "_")


def dashed(name: str) -> str:
    """The argument of a configuration key."""
    return name.replace("_", "-")


DIMENSIONS = (
    *(KeyRow(name, f"{MODEL}.{underscored(name)}") for name in KEYS.names["whole_dimensions"]),
    *(KeyRow(name, f"{MODEL}.{underscored(name)}", "flag") for name in KEYS.names["switched_dimensions"]),
    KeyRow("position-embedding-type", f"{MODEL}.position_embedding_type", "text"),
    KeyRow("normalization", f"{MODEL}.normalization", "text"),
    KeyRow("rotary-percent", f"{MODEL}.rotary_percent", "number"),
    KeyRow("moe-layer-freq", f"{MODEL}.moe_layer_freq", "text"),
    KeyRow("experimental-attention-variant", f"{MODEL}.experimental_attention_variant", "text"),
    KeyRow("linear-attention-freq", f"{MODEL}.linear_attention_freq", "text"),
    KeyRow("moe-router-score-function", f"{MODEL}.moe_router_score_function", "text"),
    KeyRow("hidden-dropout", f"{MODEL}.hidden_dropout", "number"),
    KeyRow("attention-dropout", f"{MODEL}.attention_dropout", "number"),
)
"""What the model is: the keys of the family ``megatron-lm``."""


def _kind(name: str) -> str:
    types = MEGATRON.options[name]
    if bool in types:
        return "flag"
    if list in types and str not in types:
        return "list"
    return "number" if float in types else "whole" if int in types else "text"


LISTS = frozenset(dashed(name) for name, types in MEGATRON.options.items() if list in types)
"""Arguments that take several words."""
OPTIONS = tuple(
    KeyRow(dashed(name), f"training.options.{name}", _kind(name))
    for name in MEGATRON.options
    if name not in KEYS.names["settled"]
)
"""Arguments that are options of a plan under the same name."""

OWN = (
    *(row.path for row in KEYS.rows["layout"] if row.path.endswith("parallel-size")),
    "use-checkpoint-args",
    "use-distributed-optimizer",
    "use-mcore-models",
)
"""Arguments that only Megatron-LM has."""
SHARED = (
    *(name for name in KEYS.names["whole_dimensions"] if name not in ("vocab-size", "q-lora-rank", "kv-lora-rank")),
    *(row.path for row in KEYS.rows["layout"] if row.path not in OWN),
)
"""Arguments that others have, too: several of them together are its."""


def recognise(config: ConfigFile) -> str:
    """One argument of its own, or three that it shares; what only others run has one or two of these.

    A launch of Megatron-Bridge's recipes names one.
    """
    shared = [name for name in SHARED if name in config.values]
    return any_key(*OWN)(config) or bridge_launch.launched(config) or (shared[0] if len(shared) >= 3 else "")


STAGE = "parallelism.zero_stage"
OPTION = "training.options."
NEEDED = ("num-layers", "hidden-size", "num-attention-heads")


def read_megatron(config: ConfigFile, world: int | None) -> ReadConfig:
    """The settings of one job."""
    draft = Draft(config, "megatron", KEYS.title)
    draft.derive("training.framework", "megatron", "the arguments are Megatron-LM's")
    bridge_launch.join_recipe(draft)
    return read_arguments(draft)


def read_arguments(draft: Draft) -> ReadConfig:
    """The settings of a job whose arguments are all in the draft's config."""
    config = draft.config
    allocator(draft)
    _refuse(draft)
    _serves(draft)
    _model(draft)
    _adapters(draft)
    draft.rows(KEYS.rows["launcher"])
    machines(draft)
    allotted(draft)
    draft.rows((*KEYS.rows["layout"], *KEYS.rows["serving"], *KEYS.rows["saving"], KEYS.row("optimizer")))
    for name, (key, value) in KEYS.words["switches"].items():
        if _on(config, name):
            draft.set(key, value, name)
    if "training.optimizer.name" not in draft.settings and not config.has(KEYS.row("optimizer").path):
        draft.assume("training.optimizer.name", "adamw")
    momentum = config.take("sgd-momentum")
    if draft.value("training.optimizer.name") == "sgd-momentum" and str(momentum) in ("0", "0.0"):
        draft.set("training.optimizer.name", "sgd", "sgd-momentum")
    _layout(draft)
    _sharding(draft)
    _precision(draft)
    _options(draft)
    _recompute(draft)
    clip = config.take("clip-grad")
    if clip is not None:
        draft.set("training.clip_grad_norm", str(clip) not in ("0", "0.0"), "clip-grad")
    draft.irrelevant(KEYS.irrelevant)
    draft.unmodelled(KEYS.unmodelled)
    return draft.finish()


def _on(config: ConfigFile, name: str) -> bool:
    return config.take(name) in (True, "true", "True")


SERVED = "training.served"
"""Key of what is wrong with a server's arguments as a training plan: a plan that serves has nothing against it."""


def _serves(draft: Draft) -> None:
    """A server's arguments are no training step."""
    config = draft.config
    path = next((name for name in KEYS.names["servers"] if config.has(name) and config.values[name] is not False), "")
    script = next((name for name in KEYS.names["serving_scripts"] if any(name in line for line in config.lines)), "")
    if path or script:
        what = f"`--{path}`" if path else f"`{script}`"
        help = "write a plan with `inference:`, and take what it serves from here: source: {megatron: FILE}"
        draft.refuse(path, f"{what}: the job generates text, and trains nothing", help, (SERVED,))


def _refuse(draft: Draft) -> None:
    config = draft.config
    delta = str(config.values.get(KEYS.names["delta_nets"][0])) in GATED_DELTA_NET
    if delta and _on(config, "deterministic-mode"):
        message = "`--deterministic-mode`: delta nets then run in PyTorch's operators, which have no memory model here"
        draft.refuse("deterministic-mode", message)
        return
    if delta and not config.has(KEYS.names["delta_nets"][1]):
        message = "`--experimental-attention-variant` without --linear-attention-freq: which layers is not said"
        draft.refuse(KEYS.names["delta_nets"][0], message, keys=(f"{MODEL}.linear_attention_freq",))
        return
    for name, what in KEYS.refused.items():
        if delta and name in KEYS.names["delta_nets"]:
            continue
        if config.has(name) and config.values[name] is not False:
            way = ENGINES.get(name, "")
            draft.refuse(name, f"`--{name}`: the job is {what}, of which memcheck has no model here", way)
            return
    if str(config.values.get("attention-head-type", "multihead")) != "multihead":
        key = f"{MODEL}.num_query_groups"
        message = f"`--attention-head-type {config.values['attention-head-type']}` is a fork's, and is not read"
        draft.refuse("attention-head-type", message, f"state what it means: --set {key}=1", (key,))
        return
    config.see("attention-head-type")
    if str(config.values.get("tokenizer-type")).startswith("Bert"):
        draft.refuse("tokenizer-type", "the job is an encoder (BERT): memcheck models decoders")
        return
    if config.has("vocab-file") and not any(config.has(name) for name in KEYS.names["tokenizers"]):
        message = "a vocabulary without --merge-file is WordPiece's: the job is an encoder (BERT), not a decoder"
        draft.refuse("vocab-file", message, "a decoder states --merge-file or --tokenizer-type")
        return
    for script, what in KEYS.words["refused_scripts"].items():
        if any(script in line for line in config.lines):
            draft.refuse("", f"the script runs {script}: the job is {what}, of which memcheck has no model here")
            return


def _model(draft: Draft) -> None:
    config = draft.config
    name = "hidden-size" if config.has("hidden-size") else ""
    if not name and config.has(NAMED):
        draft.set("model.name", config.values[NAMED], NAMED)
        for row in DIMENSIONS:
            if config.has(row.path):
                message = f"`{row.path}` changes the model of the recipe, and is not read together with its name"
                draft.refuse(row.path, message, "name a model like it: --model NAME", ("model", "model.name"))
        return
    config.see(NAMED)
    if not name:
        # several parallel runs of one script keep their model in a checkpoint: --use-checkpoint-args
        draft.refuse("", "the arguments do not say --hidden-size", "name the model: --model NAME", ("model",))
        config.see(*(row.path for row in DIMENSIONS))
        return
    draft.derive(f"{MODEL}.model_type", MODEL_TYPE, "Megatron-LM's GPT, by its arguments")
    draft.rows(DIMENSIONS)
    if _on(config, "use-rotary-position-embeddings") and not config.has("position-embedding-type"):
        draft.set(f"{MODEL}.position_embedding_type", "rope", "use-rotary-position-embeddings")
    for needed in NEEDED:
        if not config.has(needed):
            draft.refuse("", f"the arguments do not say --{needed}", keys=(f"{MODEL}.{underscored(needed)}",))
    for which in ("hidden_dropout", "attention_dropout"):
        if f"{MODEL}.{which}" not in draft.settings:
            draft.assume(f"{MODEL}.{which}", DROPOUT)
    positions, length = f"{MODEL}.max_position_embeddings", config.values.get("seq-length")
    if positions not in draft.settings and length is not None and not config.has("max-position-embeddings"):
        number = whole_number(str(length))
        draft.assume(positions, length if number is None else number, "as long as --seq-length")
    vocabulary, padded = f"{MODEL}.vocab_size", "padded-vocab-size"
    if config.has(padded) and not config.has("vocab-size"):
        size = draft.whole(padded, vocabulary)
        if size is not None:
            draft.set(vocabulary, size, padded)  # padding it again changes nothing
    config.see(padded)
    if not config.has("vocab-size") and vocabulary not in draft.settings:
        help = f"state it: --set {vocabulary}=50257"
        where = "tokenizer-type" if config.has("tokenizer-type") else "vocab-file" if config.has("vocab-file") else ""
        draft.refuse(
            where, "the size of the vocabulary is the tokenizer's, and no argument says it", help, (vocabulary,)
        )


def _adapters(draft: Draft) -> None:
    """The section ``peft`` of Megatron-Bridge: its class, and the fields of LoRA's."""
    config = draft.config
    fields = [name for name in config.values if name.startswith(PEFT)]
    kind = str(config.values.get(f"{PEFT}class", ""))
    config.see(*fields)
    if not fields:
        return
    if kind != "LoRA":
        message = f"`{kind or 'peft'}` of Megatron-Bridge has no memory model here: its LoRA has one"
        draft.refuse(fields[0], message, "for an upper bound: --set training.method=full", ("training.method",))
        return
    draft.set("training.method", "lora", f"{PEFT}class")
    names = {"dim": "training.lora.rank", "dropout": "training.lora.dropout"}
    draft.rows([KeyRow(f"{PEFT}{name}", key, "number") for name, key in names.items()])
    draft.rows([KeyRow(f"{PEFT}target-modules", "training.lora.target_modules", "list")])
    if config.has(f"{PEFT}exclude-modules"):
        draft.note(f"{PEFT}exclude-modules", "excluded layers are estimated as if they had adapters")


def _layout(draft: Draft) -> None:
    config = draft.config
    tensor = _degree(draft, "tensor")
    if tensor > 1:
        path = "sequence-parallel"
        if _on(config, path):
            draft.set("parallelism.sequence", True, path)
        else:
            draft.assume("parallelism.sequence", False)
    config.see("sequence-parallel")
    path = KEYS.row("expert-tensor-parallel-size").path
    if config.has("num-experts") or config.has(NAMED):
        value = draft.whole(path, "parallelism.expert_tensor")
        if value is not None:
            draft.set("parallelism.expert_tensor", value, path)
        elif tensor > 1 and config.has("num-experts"):
            draft.assume("parallelism.expert_tensor", tensor, "not given: Megatron-LM takes the tensor degree")
    config.see(path)
    pipeline = _degree(draft, "pipeline")
    per_chunk = draft.whole("num-layers-per-virtual-pipeline-stage", "parallelism.virtual_stages")
    chunks = draft.whole("num-virtual-stages-per-pipeline-rank", "parallelism.virtual_stages")
    layers = draft.value(f"{MODEL}.num_layers")
    if isinstance(layers, int):  # transformer_config.py counts the embedding and the loss as layers where it is told
        layers += sum(_on(config, f"account-for-{each}-in-pipeline-split") for each in ("embedding", "loss"))
    written = "pipeline-model-parallel-layout"
    if config.has(written) and pipeline > 1:
        _written_layout(draft, written, pipeline)
        config.see("num-layers-per-virtual-pipeline-stage", "num-virtual-stages-per-pipeline-rank")
        return
    path = "num-layers-per-virtual-pipeline-stage" if per_chunk else "num-virtual-stages-per-pipeline-rank"
    if per_chunk and isinstance(layers, int):
        chunks = max(1, layers // pipeline // per_chunk)
        draft.set(f"{OPTION}num_layers_per_virtual_pipeline_stage", per_chunk, path)
    if pipeline > 1:
        schedule = "interleaved-1f1b" if per_chunk or (chunks or 1) > 1 else "1f1b"
        if chunks:
            draft.set("parallelism.virtual_stages", chunks, path)
            draft.set("parallelism.pipeline_schedule", schedule, path)
        else:
            draft.assume("parallelism.pipeline_schedule", schedule)


def _written_layout(draft: Draft, path: str, pipeline: int) -> None:
    """A layout names every stage: how many each rank has follows from it."""
    try:
        stages = len(stages_of_layout(draft.config.values[path]))
    except UnsupportedError as error:
        draft.refuse(path, error.message, error.help, ("parallelism.virtual_stages",))
        return
    each = stages // pipeline
    if each > 1 and stages % pipeline == 0:
        draft.set("parallelism.virtual_stages", each, path)
    schedule = "interleaved-1f1b" if each > 1 else "1f1b"
    draft.set("parallelism.pipeline_schedule", schedule, path)


def _degree(draft: Draft, name: str) -> int:
    value = draft.value(f"parallelism.{name}")
    return value if isinstance(value, int) and value > 0 else 1


def _sharding(draft: Draft) -> None:
    """The distributed optimizer is ZeRO 1; Megatron-FSDP shards what its strategy names."""
    config = draft.config
    distributed, fsdp = _on(config, "use-distributed-optimizer"), _on(config, "use-megatron-fsdp")
    strategy = config.take("data-parallel-sharding-strategy")
    if fsdp:
        word = str(strategy or "optim_grads_params")
        stage = KEYS.words["strategies"].get(word)
        if stage is None:
            draft.refuse("data-parallel-sharding-strategy", f"`{word}` is no sharding strategy", keys=(STAGE,))
            return
        draft.set(STAGE, stage, "data-parallel-sharding-strategy" if strategy else "use-megatron-fsdp")
    elif distributed:
        draft.set(STAGE, 1, "use-distributed-optimizer")
    else:
        draft.assume(STAGE, 0, "no --use-distributed-optimizer")
    if fsdp and stage in (1, 2):
        draft.set(f"{OPTION}use_megatron_fsdp", True, "use-megatron-fsdp")


def _precision(draft: Draft) -> None:
    config = draft.config
    key = "training.precision"
    bf16, fp16, fp8 = _on(config, "bf16"), _on(config, "fp16"), config.take("fp8-format")
    if fp8 is not None:
        draft.set(f"{OPTION}fp8_format", str(fp8), "fp8-format")
    if fp8 is not None and bf16:
        draft.set(key, "fp8-mixed", "fp8-format")
    elif bf16 or fp16:
        draft.set(key, "bf16-mixed" if bf16 else "fp16-mixed", "bf16" if bf16 else "fp16")
    else:
        draft.assume(key, "fp32", "neither --bf16 nor --fp16")


def _options(draft: Draft) -> None:
    config = draft.config
    draft.rows(OPTIONS)
    for name in KEYS.names["numbers"]:
        setting = draft.settings.get(f"{OPTION}{underscored(name)}")
        wrong = [] if setting is None else [each for each in _items(setting.value) if not isinstance(each, int)]
        if wrong:
            draft.refuse(name, f"`--{name}`: `{wrong[0]}` is not a whole number", keys=(f"{OPTION}{name}",))
    for old, new in KEYS.words["renamed"].items():
        setting = draft.settings.pop(f"{OPTION}{old}", None)
        if setting is not None:
            draft.settings.setdefault(f"{OPTION}{new}", setting)
    for name, option in KEYS.words["switched_off"].items():
        if _on(config, name):
            draft.set(f"{OPTION}{option}", False, name)
    offloaded = draft.value(f"{OPTION}optimizer_cpu_offload") is True
    if offloaded and float(str(draft.value(f"{OPTION}optimizer_offload_fraction") or 1)) == 1:
        del draft.settings[f"{OPTION}optimizer_cpu_offload"]  # a plan says it with a key of its own; a part stays so
        draft.set("training.optimizer.offload", "cpu", "optimizer-cpu-offload")
    mask = "create_attention_mask_in_dataloader"
    if f"{OPTION}{mask}" not in draft.settings:
        draft.assume(f"{OPTION}{mask}", True)
    if config.has("num-experts") and f"{OPTION}moe_grouped_gemm" not in draft.settings:
        draft.assume(f"{OPTION}moe_grouped_gemm", False)
    if draft.value(f"{OPTION}transformer_impl") == "local":
        draft.settings.pop(f"{OPTION}attention_backend", None)
    if _on(config, "use-flash-attn") and f"{OPTION}attention_backend" not in draft.settings:
        draft.set(f"{OPTION}attention_backend", "flash", "use-flash-attn")


def _items(value: object) -> list[object]:
    return list(value) if isinstance(value, (list, tuple)) else []


def _old_recompute(draft: Draft, key: str) -> bool:
    """The names of releases before core's first, which forks still have: with a method, or the switch, whole layers."""
    config = draft.config
    mode, method = config.take("activations-checkpoint-granularity"), config.take("activations-checkpoint-method")
    switch = "checkpoint-activations"
    if mode is None and method is None and not _on(config, switch):
        return False
    whole = mode is None or str(mode) == "full"
    names = ("activations-checkpoint-granularity", "activations-checkpoint-method")
    path = next((name for name in names if config.has(name)), switch)
    config.see(switch)
    draft.set(f"{key}.mode", "full" if whole else str(mode), path)
    if not whole:
        return True
    if method is not None:
        draft.set("training.options.recompute_method", str(method), "activations-checkpoint-method")
    else:
        draft.assume("training.options.recompute_method", "uniform")
    layers = next((n for n in ("activations-checkpoint-num-layers", "checkpoint-num-layers") if config.has(n)), "")
    if layers:
        draft.set("training.options.recompute_num_layers", draft.whole(layers), layers)
    else:
        draft.assume("training.options.recompute_num_layers", 1)
    return True


def _recompute(draft: Draft) -> None:
    config = draft.config
    key = "training.activation_checkpointing"
    mode, modules = config.take("recompute-granularity"), config.take("recompute-modules")
    if mode is None and _old_recompute(draft, key):
        return
    if _on(config, "recompute-activations") and mode is None:
        draft.set(f"{key}.mode", "selective", "recompute-activations")
    elif mode is not None:
        draft.set(f"{key}.mode", str(mode), "recompute-granularity")
    else:
        draft.assume(f"{key}.mode", "none")
    if modules is not None:
        names = modules if isinstance(modules, list) else str(modules).strip("[]").replace(",", " ").split()
        draft.set(f"{key}.modules", [str(each) for each in names], "recompute-modules")


READER = Reader(recognise=recognise, read=read_megatron, lists=LISTS, short=bridge_launch.SHORT)
