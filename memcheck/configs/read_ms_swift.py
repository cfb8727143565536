"""Reads an ms-swift launch, or the same keys as YAML or JSON, with the variables before the command.

Read at 3602360a of August 2026 (``swift/arguments/*.py``, ``swift/trainers/arguments.py``, ``swift/config/*.json``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from memcheck.configs import trainer_arguments as arguments
from memcheck.configs import trainer_parts as parts
from memcheck.configs.arguments import without_comment
from memcheck.configs.config_file import ConfigFile, load_json
from memcheck.configs.draft import Draft, Reader
from memcheck.configs.key_table import key_table
from memcheck.configs.launch_devices import allocator, visible, written
from memcheck.configs.launch_lines import swift_training_alone
from memcheck.configs.pictures import IMAGES, limited, scaled, sees, shown
from memcheck.configs.pictures import parts as sides
from memcheck.configs.recipe_launch import join_launch
from memcheck.configs.trainer_job import (
    LIGER,
    AttentionArguments,
    BatchArguments,
    Collated,
    EvaluationArguments,
    Known,
    LossArguments,
    ObjectiveArguments,
    PrecisionArguments,
    RecomputeArguments,
    RowArguments,
    Runs,
    Said,
    Starts,
    TuningArguments,
    plan_of,
)
from memcheck.configs.trainer_parts import TRUE, Division, on, text
from memcheck.configs.trainer_script import commands, spelled_with_underscores
from memcheck.configs.trainer_split import STAGE, SWIFT, load_named
from memcheck.configs.types import ConfigProblem, KeyRow, Note, ReadConfig
from memcheck.edge.screen import whole_number
from memcheck.plan.finding import Location
from memcheck.record import Record

KEYS = key_table("ms-swift")
DTYPES = key_table("transformers").words["dtypes"]


OWN_COMMAND = re.compile(r"[^#]*?(?:^|[\s;&])swift\s+((?:sft|pt|rlhf)-[\w-]+)")
"""A command of a fork, which is called after one of these."""
BINARY_SCALES = frozenset(
    (
        *("", "default", "last_round", "all", "base", "ignore_empty_think", "ignore_think_prefix"),
        *("last_round_with_ignore_empty_think", "all_with_ignore_empty_think"),
    )
)
"""Parts of ``loss_scale`` that only say which tokens count (``swift/loss_scale``); others weigh them."""
LISTS = key_table("transformers").as_set("lists") | {"callbacks"}
"""Arguments of ms-swift that take several words."""


_MEGATRON = re.compile(r"(?:^|[\s;&])megatron\s+(sft|pt|rlhf)(?=\s|$)")


def megatron_command(config: ConfigFile) -> str:
    """The command of Megatron-SWIFT that a script runs."""
    lines = (without_comment(line)[:2000] for line in config.lines)
    return next((found[1] for line in lines if (found := _MEGATRON.search(line))), "")


def recognise(config: ConfigFile) -> str:
    """The key that shows that a config is ms-swift's: the tuner's, where the config also has a model; or the model's,
    in a script with a command of ``swift``. Empty where neither holds.
    """
    model = next((name for name in KEYS.names["models"] if config.has(name)), "")
    tuner = next((name for name in (*KEYS.names["tuners"], "rlhf_type") if config.has(name)), "")
    if model and tuner:
        return tuner
    called = any("swift " in line for line in config.lines) and set(KEYS.names["commands"]) & set(commands(config))
    return (model or next((name for name in KEYS.names["named"] if config.has(name)), "")) if called else ""


NODES, PROCESSES, VISIBLE = "NNODES", "NPROC_PER_NODE", "CUDA_VISIBLE_DEVICES"
_HELP = "state it: --nodes 2"


def environment(draft: Draft, names: Mapping[str, str]) -> None:
    """What the variables say. ``names``: those of whole numbers, and the plan's key of each where it has one."""
    allocator(draft)
    for name, key in names.items():
        text, at = _assigned(draft, name)
        if at is None or name in draft.config.values:
            continue
        number = whole_number(text)
        if number is not None and key not in draft.settings:
            draft.config.adopt(name, number, at)
            if key:
                draft.rows((KeyRow(name, key),))
        elif number is not None or not text:
            continue
        elif "$" not in text:
            message = f"`{name}={text}` is not a whole number"
            draft.problems.append(ConfigProblem(at, message, "write the number", keys=(key,) if key else ()))
        elif name == NODES:
            message = f"`{name}={text}`: how many nodes there are is not in the script"
            draft.problems.append(ConfigProblem(at, message, _HELP, keys=(key,)))
        elif key not in draft.settings:
            draft.notes.append(Note(at, f"`{name}={text}`: what it holds is not in the script"))
    _spread(draft)
    draft.harmless((), ("ENV.",))


def _assigned(draft: Draft, name: str) -> tuple[str, Location | None]:
    """The value of a variable before the command, and its place. A variable in it is replaced by that one's value."""
    text, at = written(draft, name)
    other = re.fullmatch(r"\$\{?(\w+)\}?", text)
    held = written(draft, other[1])[0] if other is not None else ""
    return held or text, at


def _spread(draft: Draft) -> None:
    """Processes that see several GPUs each lay the model over them (``swift/utils/torch_utils.py``, is_mp)."""
    text, at = written(draft, VISIBLE)
    seen, processes = len(text.split(",")), draft.value("hardware.gpus_per_node") or 1
    unknown = "$" in _assigned(draft, PROCESSES)[0]
    if at is not None and not unknown and isinstance(processes, int) and seen // processes >= 2:
        draft.config.adopt(VISIBLE, text, at)
        effect = f"the model is laid over {seen // processes} GPUs of each process: estimated as whole on each of them"
        draft.note(VISIBLE, f"{effect}, an upper bound")


SWITCH, SECTION, OFFLOAD = "fsdp", "fsdp_config.", "fsdp_config.activation_cpu_offload"


def adopt_fsdp(draft: Draft) -> None:
    """Put what the preset or the file says where TrainingArguments have it (``swift/arguments/sft_args.py``)."""
    config, name = draft.config, text(draft, SWITCH)
    at = config.at(SWITCH)
    if name == "fsdp2":
        for key, value in KEYS.words["fsdp2"].items():
            config.adopt(key, value, at)
        config.values[SWITCH] = "full_shard"
    elif name.lower().endswith(".json") or config.written(name):
        found = load_named(config, name, load_json)
        if found is None:
            draft.refuse(SWITCH, f"there is no `{name}` in the config's folder", "mend the path", (STAGE,))
            config.values[SWITCH] = "full_shard"
            return
        config.values[SWITCH] = found.values.get(SWITCH, "full_shard")
        for key, value in found.values.items():
            if key.startswith(SECTION) and key != OFFLOAD:
                config.adopt(key, value, at)
        if found.values.get(OFFLOAD) in TRUE:
            effect = "activations that move to the host are estimated where they are made: an upper bound"
            draft.note(SWITCH, f"`activation_cpu_offload`: {effect}")


LENGTH, PACKED = "max_length", "packing_length"
KEY = "training.sequence_length"


def longest_row(draft: Draft) -> tuple[str, bool]:
    """The argument that says how long a row can be, and whether rows are packed.

    A sample that is longer than the packed rows is a row of its own (``swift/dataset/packing.py``: a bin packing).
    """
    packed = on(draft, "packing")
    draft.config.see(LENGTH, PACKED)
    if not packed or not draft.config.has(PACKED):
        return LENGTH, packed
    sample, row = draft.whole(LENGTH, KEY), draft.whole(PACKED, KEY)
    return (LENGTH if sample and row and sample > row else PACKED), packed


def read_swift(config: ConfigFile, world: int | None) -> ReadConfig:
    """The settings of one job. ``world``: how many GPUs run it, where that is known."""
    spelled_with_underscores(config)
    draft = Draft(config, "ms-swift", KEYS.title)
    return plan_of(draft, _job(draft, world))


def _job(draft: Draft, world: int | None) -> Iterator[Record]:
    """The job in the normal form."""
    config = draft.config
    yield Runs("huggingface", "ms-swift runs transformers.Trainer", "ms-swift")
    parts.launcher(draft)
    environment(draft, KEYS.words["environment"])
    visible(draft)
    if text(draft, "max_length") == "-1":  # no limit, before 3.0
        config.values["max_length"] = None
    for old, new in KEYS.words["former"].items():
        if config.has(old) and not config.has(new):
            config.rename(old, new)
    parts.model(draft, next((name for name in KEYS.names["models"] if config.has(name)), "model"))
    config.see(*KEYS.names["models"])
    _refuse(draft)
    adopt_fsdp(draft)
    split = join_launch(draft, world) or arguments.split(draft, world, SWIFT, version=2)
    yield from _tuning(draft)
    _pictures(draft)
    yield BatchArguments(default=1, why="ms-swift's default")
    if not config.has("gradient_accumulation_steps") and world:
        micro = draft.value("training.micro_batch_size")
        steps = max(1, 16 // (world * micro)) if isinstance(micro, int) and micro else 1
        why = "ms-swift fills up to 16 sequences per step"
        draft.assume("training.gradient_accumulation_steps", steps, why)
    draft.rows((KeyRow("sequence_parallel_size", "parallelism.context"),))
    if split.engine:
        draft.rows((KeyRow("deepspeed_autotp_size", "parallelism.tensor"),))
    path, packed = longest_row(draft)
    yield RowArguments(paths=(path,), default=None, packed=packed)
    draft.ask("training.sequence_length", "how long a sequence is", "state it: --sequence-length 4096")
    yield _precision(draft, split)
    arguments.step(draft, split)
    _optimizer(draft)
    yield from _recompute(draft)
    old = "use_flash_attn"
    if on(draft, old):
        draft.set("training.attention", "flash", old)
        config.see("attn_impl")
    else:
        yield AttentionArguments("attn_impl")
    yield from _objective(draft)
    yield _evaluation(draft)
    arguments.one_job(draft)
    yield Known(KEYS)
    yield Collated()


def _refuse(draft: Draft) -> None:
    config, own = draft.config, "model_type"
    if not any(name in config.values for name in KEYS.names["models"]) and config.has(own):
        message = f"`{own}: {config.values[own]}` is ms-swift's own name of a model"
        draft.refuse(own, message, "name the model: --model NAME", ("model", "model.name"))
    if command := megatron_command(config):
        message = f"`megatron {command}` runs the model under Megatron-Core, with other arguments than `swift`"
        draft.refuse("", message, "read it as what it is: --from megatron-swift")
    called = next((found for line in config.lines if (found := OWN_COMMAND.match(line))), None)
    if called is not None:
        message = f"`swift {called[1]}` is no command of ms-swift: what it trains is not known"
        draft.refuse("", message, "state it: --set training.objective=sft", ("training.objective",))
    for name in ("use_galore", "use_ray", "freeze_parameters", "freeze_parameters_regex", *KEYS.names["unfrozen"]):
        if config.has(name) and not parts.off(draft, name) and config.values[name] != []:
            message = f"`{name}` has no memory model here"
            draft.refuse(name, message, keys=("training.freeze",) if "parameters" in name else ())
        config.see(name)
    copies = "zero_hpz_partition_size"
    if str(config.take(copies) or 1) != "1":
        message = f"`{copies}` keeps a second copy of the parameters in every node, of which memcheck has no model"
        draft.refuse(copies, message)
    for name in ("freeze_parameters_ratio", "lisa_activated_layers"):
        if str(config.values.get(name) or 0) not in ("0", "0.0"):
            draft.refuse(name, f"`{name}` trains changing parts, which has no memory model here")
    for each in parts.words(draft, "callbacks"):
        effect = KEYS.words["callbacks"].get(each, "what a callback of one's own takes is not modelled")
        if effect:
            draft.note("callbacks", f"`{each}`: {effect}")
        elif effect is not None:
            draft.refuse("callbacks", f"the callback `{each}` trains changing parts, which has no memory model here")
    if text(draft, "task_type").lower() not in ("", "causal_lm"):
        head = {"seq_cls": "classification", "embedding": "embedding", "reranker": "classification"}
        kind = head.get(text(draft, "task_type"), text(draft, "task_type"))
        parts.labelled(draft, "num_labels", kind, "task_type")
    config.see("num_labels")


def _tuning(draft: Draft) -> Iterator[Record]:
    """Which weights train; nothing for a kind that is refused."""
    tuners, names, dtype = KEYS.names["tuners"], KEYS.adapters["adapters"], "lora_dtype"
    path = next((name for name in tuners if draft.config.has(name)), tuners[0])
    kind = text(draft, path).lower() or "lora"
    bits = text(draft, "quant_bits") or text(draft, "quantization_bit")
    how = text(draft, "quant_method").lower() or "bnb"
    four = bits == "4" and how == "bnb"
    base = Said("")
    if bits not in ("", "0") and not four:
        stated = "quant_bits" if draft.config.has("quant_bits") else "quantization_bit"
        base = Said("int8" if bits == "8" and how == "bnb" else f"{how}-{bits}bit", stated)
    if how == "fp8" and not bits:  # FineGrainedFP8Config takes no number of bits (quant_args.py)
        base = Said("fp8", "quant_method")
    draft.config.see(*tuners, "quantization_bit")
    if kind == "full":
        yield TuningArguments(method="full", path=path, adapters=names)
    elif kind == "lora":
        yield TuningArguments(
            method="qlora" if four else "lora",
            path=path,
            adapters=names,
            base=base,
            double=Said(True, "bnb_4bit_use_double_quant"),
            computed="bnb_4bit_compute_dtype",
            casts="ms-swift does not call it",
        )
        yield Starts(("init_weights",))
        if draft.config.has(dtype):
            draft.set("training.lora.dtype", DTYPES.get(text(draft, dtype), "fp32"), dtype)
    else:
        message = f"`{path}: {kind}` has no memory model here"
        draft.refuse(path, message, parts.STATE_IT.format("training.method"), ("training.method",))


def _precision(draft: Draft, split: Division) -> PrecisionArguments:
    """``torch_dtype`` is the checkpoint's unless stated, and decides bf16 or fp16 where neither is."""
    written = text(draft, "torch_dtype").lower()
    amp, path = arguments.mixed(draft)
    weights = DTYPES.get(written, "bf16")
    if written not in (*DTYPES, "", "auto"):
        parts.no_dtype(draft, "torch_dtype")
    switch = "bf16" if weights == "bf16" else "fp16"  # model_args.py: fp32 weights are trained under fp16
    if not amp and not parts.off(draft, switch):
        amp, path = switch, "torch_dtype"
    return PrecisionArguments(path=path or "torch_dtype", amp=amp, weights=weights, split=split)


def _objective(draft: Draft) -> Iterator[Record]:
    kind = text(draft, "rlhf_type").lower() or ("dpo" if "rlhf" in commands(draft.config) else "")
    if kind in ("cpo", "simpo"):  # simpo is a loss of cpo's trainer, whose cross-entropy `cpo_alpha` weighs
        kind = "simpo" if str(draft.config.take("cpo_alpha")) in ("0", "0.0") else "cpo"
    if kind in KEYS.names["rollouts"]:
        draft.refuse("rlhf_type", f"`rlhf_type: {kind}` generates between its steps, which has no memory model here")
    elif kind == "gkd":
        message = "`rlhf_type: gkd`: a teacher, and texts that are generated between steps, have no memory model here"
        draft.refuse("rlhf_type", message, keys=("training.objective",))
    elif kind == "rm":
        yield ObjectiveArguments(kind="reward", path="rlhf_type")
    elif kind:
        yield ObjectiveArguments(kind=kind, path="rlhf_type", reference="ref_model")
    draft.config.see("cpo_alpha")
    name = "use_liger_kernel"
    if on(draft, name) and not kind:
        whole = _takes_logits(draft)
        yield LossArguments(Said("standard" if whole else "fused-linear", whole or name), dict.fromkeys(LIGER, name))
    else:
        yield LossArguments(Said("standard"))
    draft.config.see("use_liger", "loss_type")


def _takes_logits(draft: Draft) -> str:
    """The argument for which the trainer computes the loss itself, from whole logits in spite of Liger; empty for none
    (``swift/trainers/seq2seq_trainer.py``, compute_loss).
    """
    config, binary = draft.config, draft.config.take("is_binary_loss_scale")
    weighs = not set(text(draft, "loss_scale").split("+")) <= BINARY_SCALES
    if binary is not None:
        weighs = binary in parts.FALSE
    switches = {
        "loss_type": config.has("loss_type"),
        "loss_scale": weighs,
        "enable_dft_loss": on(draft, "enable_dft_loss"),
        "enable_channel_loss": on(draft, "enable_channel_loss"),
        "sequence_parallel_size": draft.value("parallelism.context") not in (None, 1),
    }
    return next((name for name, whole in switches.items() if whole), "")


def _pictures(draft: Draft) -> None:
    """Tower and projector are frozen, and have no adapters, unless a switch says otherwise (tuner_args.py)."""
    config = draft.config
    shown(draft, KEYS.names["vision"], ("dataset",))
    pixels = draft.whole("max_pixels", IMAGES)
    if pixels:  # swift/template/base.py rescales in front of the processor
        scaled(draft, "max_pixels", pixels)
    limited(draft, {"min_pixels": "MIN_PIXELS", "max_pixels": "MAX_PIXELS"})
    tower, projector, language = KEYS.names["frozen"]
    frozen = {
        "vision": not parts.off(draft, tower),
        "projector": not parts.off(draft, projector),
        "language": on(draft, language),
    }
    stated = next((each for each in KEYS.names["frozen"] if config.has(each)), tower)
    if text(draft, "target_modules") in ("", "all-linear") or draft.value("training.method") == "full":
        sides(draft, stated, frozen, "ms-swift freezes tower and projector by default")
    config.see(*KEYS.names["frozen"])


def _recompute(draft: Draft) -> Iterator[Record]:
    """``vit_gradient_checkpointing`` is ``gradient_checkpointing`` unless stated (``swift/trainers/arguments.py``)."""
    if draft.value(f"{parts.RECOMPUTE}.mode") == "full":  # FSDP's
        draft.config.see("gradient_checkpointing")
    else:
        name, kwargs = "gradient_checkpointing", "gradient_checkpointing_kwargs"
        yield RecomputeArguments(path=name, default=True, reentrant=False, kwargs=kwargs, why="ms-swift's default")
    name, key = "vit_gradient_checkpointing", "training.options.vit_gradient_checkpointing"
    if sees(draft) is None or draft.value(f"{parts.RECOMPUTE}.mode") in (None, "none"):
        draft.config.see(name)
    elif draft.config.has(name):
        draft.set(key, on(draft, name), name)
    else:
        draft.assume(key, True, "ms-swift recomputes the tower with the language model")


def _optimizer(draft: Draft) -> None:
    """``optimizer`` goes before ``optim``: a group of rates, Muon, or what projects gradients."""
    name = "optimizer"
    written = text(draft, name).lower()
    if written == "muon":
        draft.set("training.optimizer.name", "muon", name)
        draft.settings.pop("training.optimizer.implementation", None)
    elif written and written not in KEYS.names["optimizers"]:
        message = f"the states of `{name}: {written}` have no memory model"
        draft.refuse(name, message, parts.STATE_IT.format("training.optimizer"), ("training.optimizer",))


def _evaluation(draft: Draft) -> EvaluationArguments:
    """``eval_strategy`` is ``save_strategy``, which is by steps, unless it is stated; without data it is ``no``
    (``swift/arguments/sft_args.py``, _init_eval_strategy).
    """
    config = draft.config
    share = str(config.values.get("split_dataset_ratio") or 0) not in ("0", "0.0")
    data = next((name for name in KEYS.names["held_out"] if config.has(name) and config.values[name] != []), "")
    data = data or ("split_dataset_ratio" if share else "")
    strategies = ("eval_strategy", "evaluation_strategy", "save_strategy")
    path = next((name for name in strategies if config.has(name)), "")
    runs = bool(data) and text(draft, path).lower() not in ("no", "none", "false")
    config.see(*strategies[:2], "do_eval", "split_dataset_ratio", *KEYS.names["held_out"])
    return EvaluationArguments(path=data, runs=runs, default=1)


READER = Reader(recognise=recognise, read=read_swift, lists=LISTS, trains=swift_training_alone)
