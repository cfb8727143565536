"""Reads a nanotron YAML config: dimensions, degrees and batch are all in the file.

Read at nanotron 2411b022 of April 2026 (``src/nanotron/config/*.py``, ``optim/gradient_accumulator.py``,
``optim/zero.py``, ``helpers.py``).
"""

from __future__ import annotations

from math import prod

from memcheck.configs.config_file import ConfigFile, all_keys
from memcheck.configs.draft import Draft, Reader
from memcheck.configs.key_table import key_table
from memcheck.configs.recipe_launch import evidence, join_recipe
from memcheck.configs.trainer_parts import FALSE, RECOMPUTE, off, on, text
from memcheck.configs.types import KeyRow, ReadConfig

KEYS = key_table("nanotron")

recognise = all_keys(("tokens.micro_batch_size", "tokens.sequence_length"), ("model.model_config.hidden_size",))

CONFIG = "model.model_config."
ARCHITECTURE = "model.architecture."
KINDS = tuple(KEYS.words["classes"])


ONE_NODE = 8
"""GPUs that are taken for one node where the GPUs per node are not stated."""


def read_nanotron(config: ConfigFile, world: int | None) -> ReadConfig:
    """The settings of one job. ``world``: how many GPUs run it, where that is known."""
    draft = Draft(config, "nanotron", KEYS.title)
    draft.derive("training.framework", "nanotron", "the config's keys are nanotron's")
    join_recipe(draft)
    _model(draft)
    _layout(draft, world)
    draft.rows(KEYS.rows["rows"])
    _length(draft)
    _precision(draft)
    _optimizer(draft)
    if config.has("parallelism.recompute_layer"):
        recomputes = on(draft, "parallelism.recompute_layer")
        draft.set(f"{RECOMPUTE}.mode", "full" if recomputes else "none", "parallelism.recompute_layer")
    else:
        draft.assume(f"{RECOMPUTE}.mode", "none")
    for path, what in KEYS.words["other_jobs"].items():
        if config.has(path) and config.values[path] not in FALSE:
            draft.refuse(path, f"`{path}`: the job is {what}, which has no memory model here")
            config.see(*(key for key in config.values if key.partition(".")[0] == path.partition(".")[0]))
    draft.unmodelled(KEYS.unmodelled)
    draft.irrelevant(KEYS.irrelevant)
    return draft.finish()


def _model(draft: Draft) -> None:
    config = draft.config
    for name, what in KEYS.refused.items():
        path = f"{CONFIG}{name}"
        if config.has(path) and config.values[path] not in FALSE:
            draft.refuse(path, f"`{path}`: the job is {what}")
            config.see(*(key for key in config.values if key.startswith(f"{CONFIG}moe_")))
            config.see(f"{CONFIG}num_experts_per_tok")
        config.see(path)
    for name in KEYS.names["kernels"]:
        if off(draft, f"{CONFIG}{name}"):
            message = f"`{CONFIG}{name}: false`: what the operators in its place keep has no memory model here"
            draft.refuse(f"{CONFIG}{name}", message)
    kind = next((name for name in KINDS if on(draft, f"{CONFIG}{name}")), "")
    model_type = f"{ARCHITECTURE}model_type"
    if kind:
        biased = on(draft, f"{CONFIG}attention_bias")
        if biased and kind == "is_llama_config":
            biased = False
            draft.note(f"{CONFIG}attention_bias", "nanotron's Llama has no biases: it ignores this key")
        draft.set(model_type, "qwen2" if biased else "llama", f"{CONFIG}{kind}")
        draft.set("training.options.model_class", KEYS.words["classes"][kind], f"{CONFIG}{kind}")
        config.see(f"{CONFIG}attention_bias", f"{CONFIG}rope_interleaved")
        if kind == "is_llama_config" and on(draft, f"{CONFIG}rope_interleaved"):
            draft.set("training.options.rope_interleaved", True, f"{CONFIG}rope_interleaved")
    elif not draft.problems:
        message = f"the model is of an unknown kind: none of {', '.join(KINDS)} is true"
        draft.refuse(f"{CONFIG}hidden_size", message, "name the model: --model NAME", ("model",))
    for name, key in KEYS.words["dimensions"].items():
        size = draft.whole(f"{CONFIG}{name}", f"{ARCHITECTURE}{key}")
        if size is not None:
            draft.set(f"{ARCHITECTURE}{key}", size, f"{CONFIG}{name}")
    heads = draft.value(f"{ARCHITECTURE}num_attention_heads")
    if f"{ARCHITECTURE}num_key_value_heads" not in draft.settings and heads is not None:
        draft.assume(f"{ARCHITECTURE}num_key_value_heads", heads, "as many as query heads")
    for name, default in KEYS.words["flags"].items():
        if config.has(f"{CONFIG}{name}"):
            draft.set(f"{ARCHITECTURE}{name}", on(draft, f"{CONFIG}{name}"), f"{CONFIG}{name}")
        else:
            draft.assume(f"{ARCHITECTURE}{name}", default)
    _settings(draft)


def _settings(draft: Draft) -> None:
    padded = draft.whole("model.make_vocab_size_divisible_by", "training.options.make_vocab_size_divisible_by")
    path, key = "model.make_vocab_size_divisible_by", "training.options.make_vocab_size_divisible_by"
    if padded is not None:
        draft.set(key, padded, path)
    else:
        draft.assume(key, 1)
    kernel = text(draft, f"{CONFIG}_attn_implementation")
    if kernel in ("", "flash_attention_2"):
        draft.set("training.attention", "flash", f"{CONFIG}_attn_implementation")
    else:
        message = f"the attention kernel `{kernel}` has no memory model here"
        draft.refuse(f"{CONFIG}_attn_implementation", message, keys=("training.attention",))


def _layout(draft: Draft, world: int | None) -> None:
    config = draft.config
    degrees = []
    for path, key in KEYS.words["degrees"].items():
        degree = draft.whole(path, key)
        if degree is None and not any(key in each.keys for each in draft.problems):
            draft.ask(key, f"`{path}`", f"state it: --set {key}=1")
        elif degree is not None:
            draft.set(key, degree, path)
            degrees.append(degree)
    for path in ("parallelism.context_parallel_size", "parallelism.expert_parallel_size"):
        degree = draft.whole(path, path.removesuffix("_parallel_size"))
        if degree is not None and degree > 1:
            key = path.removesuffix("_parallel_size")
            draft.refuse(path, f"`{path}: {degree}` by nanotron's own code has no memory model here", keys=(key,))
    if len(degrees) == len(KEYS.words["degrees"]):
        gpus, per_node = prod(degrees), config.gpus_per_node or 0
        if world is None and gpus <= ONE_NODE:
            draft.derive("hardware.gpus_per_node", gpus, "dp * tp * pp, taken for one node")
        elif world is not None and world != gpus:
            message = f"`dp * tp * pp` is {gpus} GPUs, and {world} were stated"
            nodes = gpus // per_node if per_node and gpus % per_node == 0 else 0
            help = f"these are {nodes} nodes: --nodes {nodes}" if nodes else "state as many as the config runs on"
            draft.refuse("parallelism.dp", message, help, ("parallelism.data",))
    for name in ("tp_linear_async_communication", "tp_recompute_allgather"):
        if config.has(f"parallelism.{name}"):
            draft.set(f"training.options.{name}", on(draft, f"parallelism.{name}"), f"parallelism.{name}")
    if draft.value("parallelism.tensor") != 1:
        mode = text(draft, "parallelism.tp_mode").lower()
        draft.set("parallelism.sequence", mode == "reduce_scatter", "parallelism.tp_mode")
    _engine(draft)
    stage = text(draft, "optimizer.zero_stage") or "0"
    if stage in KEYS.words["stages"]:
        draft.set("parallelism.zero_stage", KEYS.words["stages"][stage], "optimizer.zero_stage")
    else:
        message = f"`optimizer.zero_stage: {stage}` is none of 0 and 1"
        draft.refuse("optimizer.zero_stage", message, keys=("parallelism.zero_stage",))


def _engine(draft: Draft) -> None:
    config = draft.config
    engine = text(draft, "parallelism.pp_engine").lower()
    schedule = "parallelism.pipeline_schedule"
    if engine in KEYS.words["engines"]:
        draft.set(schedule, KEYS.words["engines"][engine], "parallelism.pp_engine")
    elif engine:
        draft.refuse("parallelism.pp_engine", f"`pp_engine: {engine}` is none of 1f1b and afab", keys=(schedule,))
    else:
        draft.assume(schedule, "gpipe", "no `pp_engine`: afab, all forwards first")
    config.see("parallelism.tp_mode", "parallelism.pp_engine")


def _length(draft: Draft) -> None:
    """The longest of the stages; a stage that states none has that of the whole run."""
    config, key = draft.config, "training.sequence_length"
    draft.rows((KeyRow("tokens.sequence_length", key),))
    stages = config.values.get("data_stages")
    longest = draft.value(key)
    for stage in stages if isinstance(stages, list) else []:
        written = stage.get("sequence_length") if isinstance(stage, dict) else None
        if isinstance(written, int) and isinstance(longest, int) and written > longest:
            longest = written
            draft.set(key, written, "data_stages")


def _precision(draft: Draft) -> None:
    """Read the precision: 16-bit parameters with fp32 gradients and an fp32 master copy.

    With ``accumulate_grad_in_fp32: false`` gradients keep the dtype of the parameters, and there is no master copy.
    """
    config = draft.config
    rows = {"bfloat16": "bf16-mixed", "float16": "fp16-mixed", "float32": "fp32"}
    draft.rows((KeyRow("model.dtype", "training.precision.recipe", kind="word", words=rows),))
    if not config.has("model.dtype"):
        draft.assume("training.precision.recipe", "bf16-mixed", "no `model.dtype`: bfloat16 (config.py, ModelArgs)")
    path = "optimizer.accumulate_grad_in_fp32"
    if off(draft, path) and draft.value("training.precision.recipe") != "fp32":
        if draft.value("training.precision.recipe") == "bf16-mixed":
            draft.set("training.precision.recipe", "bf16-pure", path)
        else:
            draft.note(path, "parameters are stepped without a master copy, and estimated with one: an upper bound")
    config.see(path)


def _optimizer(draft: Draft) -> None:
    config = draft.config
    name = (text(draft, "optimizer.optimizer_factory.name") or "adamw").lower()
    path = "optimizer.optimizer_factory.name"
    if name not in ("adamw", "adam", "sgd"):
        draft.refuse(path, f"the states of `{path}: {name}` have no memory model", keys=("training.optimizer.name",))
    else:
        draft.set("training.optimizer.name", name, path)
    fused = next((path for path in KEYS.names["fused"] if config.has(path)), KEYS.names["fused"][0])
    if config.has(fused):
        draft.set("training.optimizer.implementation", "fused" if on(draft, fused) else "foreach", fused)
    clip = config.take("optimizer.clip_grad")
    draft.set("training.clip_grad_norm", clip is not None and str(clip) not in ("0", "0.0"), "optimizer.clip_grad")


READER = Reader(recognise=evidence("nanotron", recognise), read=read_nanotron)
