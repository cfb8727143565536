"""A torchtune recipe's YAML config, or the command that runs it, in the plan's words."""

from __future__ import annotations

from memcheck.configs import torchtune_launch as keys
from memcheck.configs import trainer_parts as parts
from memcheck.configs.config_file import ConfigFile
from memcheck.configs.draft import Draft, Reader
from memcheck.configs.torchtune_launch import (
    KEYS,
    RecipeRun,
    builder_of,
    checkpointing,
    command_of,
    default_width,
    interpolate,
    join_launch,
    loss,
    objective,
    optimizer,
    recognise,
)
from memcheck.configs.trainer_arguments import settle
from memcheck.configs.trainer_parts import FALSE, on, text
from memcheck.configs.trainer_split import GROUP, STAGE
from memcheck.configs.types import ConfigProblem, KeyRow, Note, ReadConfig, ReadSetting

OFFLOADED = ("training.offload.parameters", "training.optimizer.offload")


def read_torchtune(config: ConfigFile, world: int | None) -> ReadConfig:
    """The settings of one job. ``world``: how many GPUs run it, where that is known."""
    draft = Draft(config, "torchtune", KEYS.title)
    draft.derive("training.framework", "torchtune", "the config's components are torchtune's")
    if not join_launch(draft):
        return draft.finish()
    left = interpolate(config)
    if not _trains(draft):
        config.see(*config.values)
        return draft.finish()
    _refuse(draft)
    _model(draft)
    _quantizer(draft)
    _split(draft, _world(draft, world), command_of(config))
    draft.rows(KEYS.rows["rows"])
    packed = _rows(draft)
    optimizer(draft)
    checkpointing(draft)
    loss(draft)
    objective(draft)
    draft.assume("training.attention", "flex" if packed else "sdpa", "FlexAttention where rows are packed, else SDPA")
    draft.set("training.clip_grad_norm", config.has("clip_grad_norm"), "clip_grad_norm")
    _compiled(draft)
    if config.has("run_val_every_n_steps"):
        draft.note("run_val_every_n_steps", "the validation between steps, which keeps no gradients, is not estimated")
    config.see("run_val_every_n_steps")
    draft.unmodelled(KEYS.unmodelled)
    draft.irrelevant(KEYS.irrelevant)
    _unanswered(draft, left)
    settle(draft)
    return draft.finish()


def _trains(draft: Draft) -> bool:
    """Whether the config has an optimizer: without one it evaluates, generates or quantizes."""
    config = draft.config
    if any(key.endswith(f"optimizer.{keys.COMPONENT}") for key in config.values):
        return True
    path = next((key for key in KEYS.names["no_training"] if key in config.values), keys.MODEL)
    draft.refuse(path, f"`{path}`, and no optimizer: the config evaluates, generates or quantizes, and trains nothing")
    return False


def _refuse(draft: Draft) -> None:
    config = draft.config
    for path, what in KEYS.words["constructs"].items():
        if config.has(path) and config.values[path] not in FALSE:
            draft.refuse(path, f"`{path}`: the job is {what}, which has no memory model here")
            config.see(*config.values)  # no key of such a job is for this reader
        config.see(path)
    kind = text(draft, f"loss.{keys.COMPONENT}").rpartition(".")[2]
    if kind in KEYS.words["objectives"]:
        name = KEYS.words["objectives"][kind]
        path = f"loss.{keys.COMPONENT}"
        message = f"`{path}: {kind}`: {name} under torchtune's recipes has no memory model here"
        draft.refuse(path, message, keys=("training.objective",))
    for path, what in KEYS.words["own_plans"].items():
        degree = draft.whole(path, f"parallelism.{path.partition('_')[0]}")
        if degree is not None and degree > 1:
            message = f"`{path}: {degree}`: {what} by torchtune's own plans has no memory model here"
            draft.refuse(path, message, keys=(f"parallelism.{path.partition('_')[0]}",))
    if text(draft, "device") == "cpu":
        draft.refuse("device", "`device: cpu`: the job runs on no GPU")


def _quantizer(draft: Draft) -> None:
    """Quantization-aware training: its layers in place of linear ones (``recipes/qat_*.py``)."""
    config, path = draft.config, f"quantizer.{keys.COMPONENT}"
    written, key = text(draft, path).rpartition(".")[2], "training.options.quantizer"
    if not config.section("quantizer"):
        return
    if written != keys.FAKED:
        message = f"`{path}: {written}`: the job is quantization-aware training that has no memory model here"
        draft.refuse(path, message, keys=(key,))
    else:
        draft.set(key, written, path)
        draft.rows((KeyRow("quantizer.groupsize", "training.options.groupsize"),))
    config.see(path, "quantizer.groupsize")


def _model(draft: Draft) -> None:
    config = draft.config
    component = text(draft, keys.MODEL)
    if not component:
        return
    builder = builder_of(component)
    if builder.other:
        draft.refuse(keys.MODEL, f"`{component}` builds {builder.other}")
        config.see(*(key for key in config.values if key.startswith("model.")))
    elif builder.general:
        _dimensions(draft, component)
    elif builder.model:
        draft.set("model.name", builder.model, keys.MODEL)
    else:
        message = f"`{component}` is an unknown model: no builder of torchtune's that the catalog has a model for"
        draft.refuse(keys.MODEL, message, "name the model that it builds: --model NAME", ("model", "model.name"))
    _method(draft, builder.adapter)


def _dimensions(draft: Draft, component: str) -> None:
    """A builder of any size: its arguments are the model's dimensions."""
    draft.set("model.architecture.model_type", "mistral" if "mistral" in component else "llama", keys.MODEL)
    draft.derive("model.architecture.tie_word_embeddings", value=False, why="its builder has a head of its own")
    for name, key in KEYS.words["dimensions"].items():
        size = draft.whole(f"model.{name}", f"model.architecture.{key}")
        if size is not None:
            draft.set(f"model.architecture.{key}", size, f"model.{name}")
    hidden, width = draft.value("model.architecture.hidden_size"), "model.architecture.intermediate_size"
    if width not in draft.settings and "llama2" in component and isinstance(hidden, int):
        draft.assume(width, default_width(hidden), "two thirds of four times the width, rounded up to 256")


def _method(draft: Draft, adapter: str) -> None:
    """``lora_*`` builders train adapters; on a base in four bits with ``qlora_*`` or ``quantize_base``."""
    config = draft.config
    if not adapter:
        draft.set("training.method", "full", keys.MODEL)
        return
    four = adapter == "qlora" or on(draft, "model.quantize_base")
    draft.set("training.method", "qlora" if four else "lora", keys.MODEL)
    draft.rows((KeyRow("model.lora_rank", "training.lora.rank", default=8),))
    targets = "training.lora.target_modules"
    names = parts.words(draft, "model.lora_attn_modules")
    unknown = [name for name in names if name not in KEYS.words["modules"]]
    if unknown or not names:
        known = ", ".join(KEYS.words["modules"])
        message = f"`lora_attn_modules`: {', '.join(unknown) or 'no names'}; torchtune knows {known}"
        draft.refuse("model.lora_attn_modules", message, "name the modules", (targets,))
    else:
        whole = on(draft, "model.apply_lora_to_mlp")
        found = [KEYS.words["modules"][name] for name in names] + [*KEYS.names["mlp"]] * whole
        head = ["lm_head"] if on(draft, "model.apply_lora_to_output") else []
        draft.set(targets, [*found, *head], "model.lora_attn_modules")
    dropout = config.take("model.lora_dropout")
    if dropout is not None and str(dropout) not in ("0", "0.0"):
        draft.rows((KeyRow("model.lora_dropout", "training.lora.dropout", kind="number"),))
    if on(draft, "model.use_dora"):
        draft.set("training.lora.dora", value=True, path="model.use_dora")
    config.see(*(f"model.{name}" for name in KEYS.names["adapters"]))


def _world(draft: Draft, world: int | None) -> int | None:
    """How many GPUs run the job: what the command says, else what was stated."""
    each, nodes = draft.value("hardware.gpus_per_node"), draft.value("hardware.nodes")
    return each * (nodes if isinstance(nodes, int) else 1) if isinstance(each, int) else world


def _split(draft: Draft, world: int | None, run: RecipeRun | None) -> None:
    """One GPU holds everything; on several, only the distributed recipes run, which shard with FSDP2."""
    offloads = on(draft, "fsdp_cpu_offload")
    if world is None and run is not None and run.single and not run.comment:
        why = f"`{run.recipe}` runs on one GPU"
        draft.settings["hardware.gpus_per_node"] = ReadSetting(1, why, run.location)
    if world in (None, 1):  # a plan that says nothing of its GPUs has one
        draft.derive(STAGE, 0, "one GPU: nothing is sharded")
        if offloads:
            draft.note("fsdp_cpu_offload", "nothing is sharded on one GPU, so that nothing is offloaded")
        return _unsharded(draft)
    if run is not None and run.single and not run.comment:
        message = f"`{run.recipe}` runs on one GPU, and there are {world}"
        draft.problems.append(ConfigProblem(run.location, message, "name the distributed recipe, or state one GPU"))
    elif run is not None and run.single:
        message = f"`{run.recipe}` in a comment runs on one GPU; on {world} it is estimated as the distributed recipe"
        draft.notes.append(Note(run.location, message))
    draft.derive(STAGE, 3, "on several GPUs torchtune's distributed recipes run, which shard with FSDP2")
    for key in OFFLOADED if offloads else ():
        draft.set(key, "cpu", "fsdp_cpu_offload")
    draft.rows((KeyRow("fsdp_reshard_after_forward", "parallelism.reshard_after_forward", kind="flag"),))
    replicate = draft.whole("data_parallel_replicate_dim", GROUP) or 1
    shard = draft.whole("data_parallel_shard_dim", GROUP) or -1
    if replicate > 1 and (shard > 0 or world):
        draft.set(GROUP, shard if shard > 0 else (world or 1) // replicate, "data_parallel_replicate_dim")
    ends = parts.words(draft, "custom_sharded_layers")
    if {"tok_embeddings", "output"} <= set(ends):
        draft.set("training.options.custom_sharded_layers", ends, "custom_sharded_layers")
    elif ends:
        what = ", ".join(ends)
        draft.note("custom_sharded_layers", f"{what} alone in a group of its own is estimated as part of the root's")
    return None


def _unsharded(draft: Draft) -> None:
    draft.config.see(
        "fsdp_reshard_after_forward",
        "data_parallel_replicate_dim",
        "data_parallel_shard_dim",
        "custom_sharded_layers",
    )


def _rows(draft: Draft) -> bool:
    """Tokens per sequence, and whether rows are packed to it."""
    config = draft.config
    sets = config.values.get("dataset")
    several = [each for each in sets if isinstance(each, dict)] if isinstance(sets, list) else []
    # several are packed together, or stop the recipe (torchtune/datasets/_concat.py)
    packed = on(draft, "dataset.packed") or any(each.get("packed") is True for each in several)
    key = "training.sequence_length"
    if config.has(keys.LENGTH):
        draft.rows((KeyRow(keys.LENGTH, key),))
    elif config.has(keys.CUT):
        draft.rows((KeyRow(keys.CUT, key),))
    else:
        message = f"`{keys.LENGTH}` states no length: rows are as long as the longest of a micro-batch"
        help = "state the longest there, or on the command line: --sequence-length 4096"
        draft.refuse(keys.LENGTH, message, help, (key,))
    if not config.has("batch_size"):
        draft.ask("training.micro_batch_size", "how many sequences a GPU takes at once (`batch_size`)", "state it")
    why = "rows are packed" if packed else "rows are padded to the longest of a micro-batch: an upper bound"
    draft.assume("training.sequences", "packed" if packed else "padded", why)
    return packed


def _compiled(draft: Draft) -> None:
    """``compile: true``, or a switch for each part."""
    config = draft.config
    if config.has("compile"):
        draft.set("training.compile", config.take("compile") not in FALSE, "compile")
    elif config.section("compile"):
        path = next(key for key in config.values if key.startswith("compile."))
        model = config.values.get("compile.model", True) not in FALSE
        draft.set("training.compile", model, "compile.model" if "compile.model" in config.values else path)
        config.see("compile.optimizer_step", "compile.scale_grads")
        if model and config.values.get("compile.loss", True) in FALSE:
            draft.note("compile.loss", "the model is compiled and the loss is not: the loss is estimated as compiled")
        config.see("compile.loss")


def _unanswered(draft: Draft, left: dict[str, str]) -> None:
    """References that nothing in the file answers, but for those in keys that move no memory."""
    harmless = tuple(name for names in KEYS.irrelevant.values() for name in names if name != "tokenizer.")
    for key, reference in left.items():
        inside = any(key == name or (name[-1] == "." and key.startswith(name)) for name in harmless)
        if inside and not key.endswith(keys.COMPONENT):
            continue
        message = f"`{key}` refers to `{reference}`, which the config does not say"
        draft.refuse(key, message, "write the value")


READER = Reader(recognise=recognise, read=read_torchtune)
