"""Reads a team's own YAML, JSON or TOML by the usual names of its keys, wherever they stand: ``--from keys``.

Nothing says how such a file is used. Only keys with a usual name are taken, each with its line. What no key says is
asked for where it decides the size; else the value that never needs less is assumed. The names and values mean what
TRL 1.9 and transformers 5.23.0 call so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice

from memcheck.configs import trainer_arguments as arguments
from memcheck.configs import trainer_parts as parts
from memcheck.configs.config_file import ConfigFile
from memcheck.configs.draft import Draft, Reader
from memcheck.configs.key_table import key_table
from memcheck.configs.next_command import gpu_named, model_named
from memcheck.configs.read_trl import attention_of, loss_of, precision_of, recompute_of
from memcheck.configs.trainer_job import (
    BatchArguments,
    Collated,
    EvaluationArguments,
    ObjectiveArguments,
    RowArguments,
    Runs,
    Said,
    TuningArguments,
    plan_of,
)
from memcheck.configs.trainer_parts import off, on
from memcheck.configs.types import ConfigProblem, Note, ReadConfig, ReadSetting
from memcheck.plan.finding import Location
from memcheck.record import Record

KEYS, PYTHON, TRL = key_table("keys"), key_table("python"), key_table("trl")
NAMES: Mapping[str, tuple[str, ...]] = {
    normal: (*KEYS.words["within"].get(normal, "").split(), *names.split())
    for normal, names in KEYS.words["usual"].items()
}
BATCH, MODEL, RECOMPUTE = "per_device_train_batch_size", "model_name_or_path", "gradient_checkpointing"
MACHINE = {"gpu": "hardware.gpu", "gpus": "hardware.gpus_per_node", "nodes": "hardware.nodes"}
HARMLESS = frozenset(
    name for table in (KEYS, key_table("transformers")) for names in table.irrelevant.values() for name in names
)
"""Names of what moves no memory."""
MOST_LISTED = 12
"""Keys that a message names."""
SHOWN = {
    MODEL: "model",
    BATCH: "micro-batch",
    "max_length": "length",
    "lora_r": "LoRA rank",
    "load_in_4bit": "4-bit",
    "load_in_8bit": "8-bit",
    "gradient_accumulation_steps": "accumulation",
    RECOMPUTE: "gradient checkpointing",
    "optim": "optimizer",
    "packing": "packing",
    "bf16": "bf16",
    "fp16": "fp16",
    "gpu": "GPU",
    "gpus": "GPUs",
}
"""What a proposal names of a file, in this order."""
_MODEL_LIKE = re.compile(r"(?:\.{0,2}/)?[\w.-]+(?:/[\w.-]+)*\Z")


class TakenKey(Record):
    """A value of a file, under the name that TRL has for it."""

    key: str
    """The key as the file has it, with its sections."""
    value: object
    at: Location
    others: tuple[Location, ...] = ()
    """Places of keys of the same name with other values."""


def taken(config: ConfigFile) -> dict[str, TakenKey]:
    """What a file says under usual names, by TRL's name. Of several usual names the first of the table counts."""
    by_name: dict[str, list[str]] = {}
    for key, value in config.values.items():
        tokens = [each.lower().replace("-", "_") for each in key.split(".")]
        if value is None or not KEYS.as_set("others").isdisjoint(tokens[:-1]):
            continue
        by_name.setdefault(tokens[-1], []).append(key)
        if len(tokens) > 1:
            by_name.setdefault(".".join(tokens[-2:]), []).append(key)
    found: dict[str, TakenKey] = {}
    for normal, names in NAMES.items():
        for name in names:
            usable = [key for key in by_name.get(name, ()) if _fits(normal, key, config.values[key])]
            if usable:
                found[normal] = _taken(config, usable)
                break
    _words(config, by_name, found)
    return found


def _taken(config: ConfigFile, keys: list[str]) -> TakenKey:
    value = config.values[keys[0]]
    differing = islice((key for key in keys[1:] if config.values[key] != value), MOST_LISTED)
    others = tuple([config.at(key) for key in differing])
    return TakenKey(key=keys[0], value=value, at=config.at(keys[0]), others=others)


def _fits(normal: str, key: str, value: object) -> bool:
    """Whether a value can be what its key's name says: a model's name is no mapping, and a batch is a number."""
    sections = key.lower().split(".")[:-1]
    if normal == MODEL:
        return isinstance(value, str) and _MODEL_LIKE.match(value) is not None
    if normal == BATCH:
        whole = isinstance(value, int) and not isinstance(value, bool) and value > 0
        return whole and KEYS.as_set("batchless").isdisjoint(sections)
    if normal == "max_length":
        return isinstance(value, int) and value > 1
    if normal in ("lora_target_modules", "lora_modules_to_save"):
        return isinstance(value, (str, list))
    if normal in ("gpu", "dtype", "optim", "attn_implementation", "mixed_precision"):
        return isinstance(value, str)
    if normal in ("gpus", "nodes"):
        return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10_000
    return not isinstance(value, (list, dict))


def _words(config: ConfigFile, by_name: Mapping[str, list[str]], found: dict[str, TakenKey]) -> None:
    """Words of methods and precisions: ``method: qlora`` says two things at once. What stands already stays."""
    for name in KEYS.names["methods"]:
        for key in by_name.get(name, ())[:1]:
            word = str(config.values[key]).lower().replace("_", "-")
            said = KEYS.words["said"].get(word, KEYS.words["said"].get(word.replace("-", ""), {}))
            for normal, value in said.items():
                found.setdefault(normal, TakenKey(key=key, value=value, at=config.at(key)))


def read_keys(config: ConfigFile, world: int | None) -> ReadConfig:
    """The settings of the job that the usual names of a file state."""
    found = taken(config)
    plain = ConfigFile(config.path, {}, lambda _: config.at(""), ())
    plain.read, plain.inside, plain.version, plain.method = config.read, config.inside, config.version, config.method
    plain.gpus_per_node, plain.images, plain.stated = config.gpus_per_node, config.images, config.stated
    draft = Draft(plain, "keys", KEYS.title)
    draft.sources = {config.path: config.lines}
    for normal, each in found.items():
        if each.others and normal in SHOWN:
            lines = ", ".join(str(at.span.line) for at in each.others[:MOST_LISTED])
            message = f"`{each.key}` has another value on lines {lines}: which of them trains is not known"
            key = PYTHON.words["settled"].get(normal, "model" if normal == MODEL else "")
            help = PYTHON.words["answers"].get(key, f"--set {key}=VALUE") if key else "name a file with one of them"
            draft.problems.append(ConfigProblem(each.at, message, help, keys=(key,) if key else ()))
        elif normal not in MACHINE:
            plain.adopt(normal, each.value, each.at)
    result = plan_of(draft, _job(draft, config, found, world))
    return _said_by_file(config, found, result)


def _job(draft: Draft, config: ConfigFile, found: Mapping[str, TakenKey], world: int | None) -> Iterator[Record]:
    """The job in the normal form."""
    plain, answers = draft.config, PYTHON.words["answers"]
    kind, at = _objective(config)
    yield Runs("huggingface", "the usual names are those of transformers and TRL", "trl" if kind else "transformers")
    _machine(draft, found)
    if plain.has(MODEL):
        parts.model(draft, MODEL)
    else:
        draft.ask("model", "which model it trains", answers["model"])
    split = arguments.split(draft, world)
    yield _tuning(draft)
    yield BatchArguments(micro=(BATCH,), default=0)
    _asks(draft, BATCH, "training.micro_batch_size", "how many sequences a GPU takes at once", answers)
    packed = on(draft, "packing")
    full = "" if packed or off(draft, "packing") else "no key says how rows are made: full rows need most"
    yield RowArguments(paths=("max_length",), default=None, packed=packed or bool(full), full=full)
    plain.see("packing", "max_length")
    draft.ask("training.sequence_length", "how long a row is", answers["training.sequence_length"])
    if not any(plain.has(name) for name in ("bf16", "fp16", "mixed_precision", "dtype", "bnb_4bit_compute_dtype")):
        draft.ask("training.precision.recipe", "the precision", answers["training.precision.recipe"])
    elif not any(on(draft, name) for name in ("bf16", "fp16")) and not plain.has("mixed_precision"):
        _by_compute(draft, found)
    yield from precision_of(draft, split, alone=False, opened=False)
    arguments.step(draft, split)
    if plain.has(RECOMPUTE) and str(plain.values[RECOMPUTE]).lower() in ("unsloth", "full", "selective", "auto"):
        plain.adopt(RECOMPUTE, True, plain.at(RECOMPUTE))
    yield from recompute_of(draft, alone=False)
    yield from attention_of(draft, opened=False)
    if kind in TRL.names["rollouts"]:
        draft.problems.append(
            ConfigProblem(at, f"`{kind}`: rollouts of reinforcement learning share the GPU, and are not modelled")
        )
    elif kind and kind != "sft":
        plain.adopt("objective", kind, at)
        yield ObjectiveArguments(kind=kind, path="objective", reference="")
    yield from loss_of(draft, supervised=kind in ("", "sft"))
    yield EvaluationArguments(path="eval_strategy", runs=arguments.evaluates(draft), default=8)
    yield Collated()
    plain.see(*found)


def _asks(draft: Draft, name: str, key: str, what: str, answers: Mapping[str, str]) -> None:
    """A question in place of a default that nobody stated."""
    if not draft.config.has(name):
        draft.settings.pop(key, None)
        draft.ask(key, what, answers[key])


def _objective(config: ConfigFile) -> tuple[str, Location]:
    """What is optimized by the file's own word for it, or by its name; empty: the next token."""
    kinds = dict.fromkeys(TRL.names["scripts"])
    for key, value in config.values.items():
        name = key.lower().rpartition(".")[2].replace("-", "_")
        if name in KEYS.names["objectives"] and isinstance(value, str) and value.lower() in kinds:
            return value.lower(), config.at(key)
    named = re.split(r"[^a-z]+", config.path.lower().rpartition("/")[2])
    return next((kind for kind in kinds if kind in named and kind != "sft"), ""), config.at("")


def _machine(draft: Draft, found: Mapping[str, TakenKey]) -> None:
    for normal, key in MACHINE.items():
        each = found.get(normal)
        if each is None:
            continue
        value = gpu_named(each.value)[0] if normal == "gpu" else each.value
        if value:
            why = f"{each.at.path}:{each.at.span.line} {each.key}"
            draft.settings[key] = ReadSetting(value, why, each.at)
    if "hardware.gpus_per_node" not in draft.settings:
        draft.assume("hardware.gpus_per_node", 1, "no key says how many GPUs run it")


def _tuning(draft: Draft) -> TuningArguments:
    """Which weights train: adapters where a key of theirs stands, unless a key turns them off."""
    four, eight = on(draft, "load_in_4bit"), on(draft, "load_in_8bit")
    names = PYTHON.adapters["adapters"]
    adapted = not off(draft, "use_peft") and (on(draft, "use_peft") or draft.config.has("lora_r") or four or eight)
    if not adapted and (four or eight):
        path = "load_in_4bit" if four else "load_in_8bit"
        draft.refuse(path, f"`{path}` without adapters: a quantized model is not trained whole")
    if not adapted:
        return TuningArguments(method="full", path="use_peft", adapters=names)
    if not draft.config.has("lora_r"):
        names = names._replace(default_rank=None)
    if not draft.config.has("lora_target_modules"):
        names = names._replace(default_targets="all-linear")
    path = next(name for name in ("use_peft", "lora_r", "load_in_4bit", "load_in_8bit") if draft.config.has(name))
    return TuningArguments(
        method="qlora" if four else "lora",
        path=path,
        adapters=names,
        base=Said("int8" if eight else "", "load_in_8bit"),
        double=Said(False, "use_bnb_nested_quant"),
        computed="bnb_4bit_compute_dtype",
    )


def _by_compute(draft: Draft, found: Mapping[str, TakenKey]) -> None:
    """A dtype of 16 bits, of weights or of 4-bit products: autocast runs in it, which needs no less than without."""
    each = found.get("dtype") or found.get("bnb_4bit_compute_dtype")
    word = str(each.value).lower().replace("torch.", "") if each is not None else ""
    name = {"bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16", "half": "fp16"}.get(word)
    if each is not None and name is not None:
        draft.config.adopt(name, True, each.at)


def _said_by_file(config: ConfigFile, found: Mapping[str, TakenKey], result: ReadConfig) -> ReadConfig:
    """The reading under the file's own names, with one note on the keys that were not taken."""
    own = {f"{each.at.path}:{each.at.span.line} {normal}": each for normal, each in found.items()}
    settings = {
        key: each._replace(why=f"{each.why.rpartition(' ')[0]} {own[each.why].key}") if each.why in own else each
        for key, each in result.settings.items()
    }
    used = {each.key for each in found.values()}
    left = [key for key in config.values if key not in used and key.lower().rpartition(".")[2] not in HARMLESS]
    notes = result.notes
    if left:
        named = ", ".join(f"`{key[:60]}`" for key in left[:MOST_LISTED])
        more = f" and {len(left) - MOST_LISTED} more" if len(left) > MOST_LISTED else ""
        notes = (
            *notes,
            Note(config.at(left[0]), f"keys that have no usual name, and are not looked at: {named}{more}"),
        )
    return result._replace(settings=settings, notes=notes)


def proposal(config: ConfigFile) -> tuple[str, tuple[str, ...]]:
    """What a file's keys say, in words with lines, and the options that its reading asks for; empty texts for none.

    A file is proposed where it names a model or a batch, and two values of a training.
    """
    found = taken(config)
    shown = [name for name in SHOWN if name in found and found[name].value not in (None, False)]
    job = [name for name in shown if name not in MACHINE]
    if len(job) < MOST_UNSURE or not {MODEL, BATCH, "lora_r"} & set(job):
        return "", ()
    said = []
    for name in shown:
        each = found[name]
        value = "" if each.value is True else f" {str(each.value)[:60]}"
        said.append(f"{SHOWN[name]}{value} (line {each.at.span.line})")
    problems = read_keys(config, None).problems
    asked = dict.fromkeys(option for each in problems for option in _OPTION.findall(each.help))
    if MODEL in found and not model_named(found[MODEL].value):
        asked = {PYTHON.words["answers"]["model"]: None, **asked}
    return ", ".join(said), tuple(asked)


MOST_UNSURE = 2
"""Values of a training from which on a file is taken for one's."""
_OPTION = re.compile(r"--set \S+|--[\w-]+ [\w./\[\]-]+")


def recognise(config: ConfigFile) -> str:
    """The key of the first usual name; the format is only asked where ``--from keys`` says it."""
    return next((each.key for each in taken(config).values()), "")


READER = Reader(recognise=recognise, read=read_keys)
