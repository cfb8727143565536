"""The job that a Python file trains: its trainer, and what reaches it, under the names of TRL's command line."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from memcheck.configs.key_table import key_table
from memcheck.configs.python_bridge import recipes_of
from memcheck.configs.python_code import FilesAround, LocalClass, PythonCode, named, place, walked
from memcheck.configs.python_library import TRAINERS, UNSLOTH, LoadedModel, StatedGpu, library
from memcheck.configs.python_loop import LOOP, PREPARED, loops_of
from memcheck.configs.python_options import CONFIGS
from memcheck.configs.python_run import OTHERS, FollowedFile
from memcheck.configs.python_unsloth import complete
from memcheck.configs.python_values import UNKNOWN, MadeObject, PythonValue, plain
from memcheck.configs.types import NO_DEFINES
from memcheck.plan.finding import Location, Span
from memcheck.record import Record

KEYS = key_table("python")
NO_MACHINE = StatedGpu()
MOST_JOBS = 4
"""Trainers that a message names."""


class PythonJob(Record):
    """One training, with the keys of TRL's command line."""

    trainer: str
    """The class of the trainer."""
    at: Location
    values: dict[str, PythonValue]
    """Values by key, known or not."""
    objective: str
    """``sft``, ``dpo``, ...; empty for transformers' own Trainer."""
    trl_config: bool
    """Whether the arguments are TRL's, whose defaults differ from those of TrainingArguments."""
    model: LoadedModel | None
    """None where the trainer loads the model itself."""
    wrapped: bool
    """Whether the file itself makes the adapters, before the trainer gets the model."""
    older: bool
    """Whether a release of TRL before 0.20 is needed: later ones have other names."""
    refusals: tuple[tuple[Location, str, str, tuple[str, ...]], ...] = ()
    """What keeps it from being a job that memcheck estimates: place, message, help, keys that settle it."""
    visible: PythonValue | None = None
    """What the file sets ``CUDA_VISIBLE_DEVICES`` to."""
    tokens: PythonValue | None = None
    """How long rows are that the file cuts itself, where a trainer of TRL has a limit of its own, too."""
    padded: bool = False
    """Whether each row is padded to the limit."""
    prepared: bool = False
    """Whether an Accelerator of a loop of one's own gets the model, which it splits as its launcher says."""
    cut: Location | None = None
    """Where the tokenizer cuts rows at the limit of its model, which the file does not say."""


def followed(
    code: PythonCode,
    defines: Mapping[str, str] = NO_DEFINES,
    machine: StatedGpu = NO_MACHINE,
    near: FilesAround | None = None,
    options: Mapping[str, str] | None = None,
    words: tuple[str, ...] = (),
) -> FollowedFile:
    """The reading of a file, with all that its calls made.

    ``near``: the files around it; None: none is read. ``options``: the arguments of its launch line; None: it has none.
    ``words``: the words of that line that are no options.
    """
    run = FollowedFile(code, library, defines, machine, near)
    run.options, run.words = options, words
    run.all()
    if not trains(run):
        run.uncalled()
    if not trains(run):
        run.things += loops_of(code, run)
    return run


def is_trainer(thing: MadeObject) -> bool:
    """Whether it is a trainer of transformers, TRL or unsloth, or of a class that is made of one."""
    if thing.name == LOOP:
        return True
    if isinstance(thing.kind, LocalClass) and not any(each.endswith("Trainer") for each in thing.kind.bases):
        return False  # a class of the file's own, with a loop of its own
    package, _, inside = thing.path.partition(".")
    return thing.name.endswith("Trainer") and (not inside or package in ("transformers", "trl", "unsloth"))


def trainers(run: FollowedFile) -> list[MadeObject]:
    """The trainers of a file: those whose ``train`` is called; where none is, all of them."""
    found = [each for each in run.things if is_trainer(each)]
    return [each for each in found if "?trained" in each.keywords] or found


def trains(run: FollowedFile) -> bool:
    """Whether a file makes a trainer, or a recipe of Megatron-Bridge."""
    return bool(trainers(run) or recipes_of(run))


def jobs_of(run: FollowedFile) -> list[PythonJob]:
    """The jobs of a file, each different one once: where a notebook makes the same trainer again, the last."""
    found: dict[object, PythonJob] = {}
    for trainer in trainers(run):
        job = _job(run, trainer)
        said = {key: str(plain(each)) for key, each in job.values.items() if key in KEYS.words["settled"]}
        found[job.trainer, tuple(sorted(said.items()))] = job
    return list(found.values())


def _job(run: FollowedFile, trainer: MadeObject) -> PythonJob:
    values: dict[str, PythonValue] = {}
    refused: list[tuple[Location, str, str, tuple[str, ...]]] = []
    objective = TRAINERS.get(trainer.name, "?")
    if objective == "?":
        message = f"`{trainer.name}` has no memory model here"
        known = ", ".join(name for name in TRAINERS if name not in ("Trainer", LOOP))
        refused.append((trainer.at, message, f"memcheck reads Trainer, {known}", ()))
        objective = ""
    arguments = _arguments(run, trainer, values, refused)
    given = trainer.argument(0, "model")
    if given is None and "model_init" in trainer.keywords:
        given = trainer.keywords["model_init"]
    model = given.of if given is not None and isinstance(given.of, LoadedModel) else None
    loaded = trainer.get("model_init_kwargs") or (arguments.get("model_init_kwargs") if arguments else None)
    if model is not None:
        _loaded(model, values, refused)
    elif given is not None:
        values["model_name_or_path"] = given
        if loaded is not None and isinstance(loaded.of, dict):
            _loading(loaded.of, values)
    wrapped = model is not None and model.adapter is not None
    adapters = (None if model is None else model.adapter, trainer.get("peft_config"))
    adapter = next((each for each in adapters if each is not None), None)
    if adapter is not None and adapter.of is not None:
        _adapter(adapter, values, refused)
    trl_config = bool(CONFIGS.get(arguments.name if arguments is not None else f"{trainer.name[:-7]}Config", ""))
    if model is not None and model.name in UNSLOTH:
        complete(values, model, run.machine, trl=trl_config)
    _frozen(run, refused, adapted=adapter is not None)
    devices = next((each.get("devices") for each in run.things if each.get("?fits") is not None), None)
    count = None if devices is None else plain(devices)
    count = len(count) if isinstance(count, list) else count
    if devices is not None and isinstance(count, int) and count > 1:
        message = f"`devices`: Lightning starts a process on each of {count} GPUs"
        refused.append((devices.at, message, "state them: --gpus-per-node 1", ("hardware.gpus_per_node",)))
    padded = _rows(run, trainer, objective, values)
    older = objective != "" and (
        any(name in trainer.keywords for name in KEYS.names["older"])
        or (arguments is not None and "max_seq_length" in arguments.keywords)
    )
    return PythonJob(
        trainer=trainer.name,
        at=trainer.at,
        values=values,
        objective=objective,
        trl_config=trl_config,
        model=model,
        wrapped=wrapped,
        older=older,
        refusals=tuple(refused),
        visible=run.main.names.get("os.environ[CUDA_VISIBLE_DEVICES]"),
        tokens=_tokens(run) if objective else None,
        padded=padded,
        prepared=plain(trainer.get(PREPARED)) is True,
        cut=next((each.at for each in run.things if each.name == "cut"), None),
    )


def _keywords_of(config: MadeObject) -> list[tuple[str, PythonValue]]:
    """The keywords of a call; ``vars(config)[True] = 1`` adds one whose name is no text."""
    return [(str(name), value) for name, value in config.keywords.items()]


def _arguments(
    run: FollowedFile, trainer: MadeObject, values: dict[str, PythonValue], refused: list[Any]
) -> MadeObject | None:
    """The arguments of the trainer's config, then those that older trainers take themselves."""
    given = trainer.argument(1, "args")
    config = given.of if given is not None and isinstance(given.of, MadeObject) else None
    if given is not None and config is None and given.of is not None:
        message = f"the arguments of `{trainer.name}` are not known: {given.why}"
        _open(refused, given, message, ("training.micro_batch_size",))
    if config is not None:
        if config.open:
            message = f"the arguments of `{trainer.name}` are those of a command line"
            refused.append((config.at, message, LAUNCH, ("training.micro_batch_size",)))
        for name, value in _keywords_of(config):
            if name.startswith("**"):
                _open(refused, value, f"`{name}`: what is in it is not known", ("training.micro_batch_size",))
            elif not name.startswith("?"):
                values[name] = value
    for name in KEYS.names["moved"]:
        moved = trainer.get(name)
        if moved is not None and moved.of is not None and name not in values:
            values[name] = moved
    reference = trainer.get("ref_model")
    if reference is not None and reference.of is not None:
        other = reference.of
        values["ref_model"] = (other.argument(0, *MODEL_NAMES) if isinstance(other, LoadedModel) else None) or reference
    optimizers = trainer.get("optimizers")
    if optimizers is not None and isinstance(optimizers.of, list) and optimizers.of and optimizers.of[0].of is not None:
        values["optim"] = optimizers._replace(of=UNKNOWN, why="an optimizer that the file makes itself")
    return config


LAUNCH = "give the launch line: memcheck check --gpu NAME -- python FILE --OPTION VALUE ..."
MODEL_NAMES = ("pretrained_model_name_or_path", "model_name", "model_name_or_path")


def _open(refused: list[Any], value: PythonValue, message: str, keys: tuple[str, ...]) -> None:
    refused.append((value.at, message, " ".join(KEYS.words["answers"].get(key, "") for key in keys), keys))


def _loading(keywords: dict[Any, PythonValue], values: dict[str, PythonValue]) -> None:
    """Arguments of ``from_pretrained``, and of the quantization that is one of them."""
    for name, key in KEYS.words["loading"].items():
        value = keywords.get(name)
        if value is not None and value.of is not None and not (key == "dtype" and plain(value) is None and value.known):
            values[key] = value
    quantized = keywords.get("quantization_config")
    if quantized is None or quantized.of is None:
        return
    if not isinstance(quantized.of, MadeObject):
        values["load_in_4bit"] = quantized._replace(of=UNKNOWN)
    elif quantized.of.name == "BitsAndBytesConfig":
        _loading(quantized.of.keywords, values)
    else:
        values["load_in_4bit"] = quantized._replace(of=UNKNOWN, why=f"`{quantized.of.name}`")


def _loaded(model: LoadedModel, values: dict[str, PythonValue], refused: list[Any]) -> None:
    """A model that the file loads."""
    name = model.argument(0, *MODEL_NAMES)
    if model.name.endswith("from_config") or name is None:
        what = "the file builds the model from a configuration of its own"
        refused.append((model.at, what, "name a model like it: --model llama-3.1-8b", ("model",)))
    else:
        values["model_name_or_path"] = name
    _loading(model.keywords, values)
    if model.dtype is not None:
        values["dtype"] = model.dtype
    if model.recompute is not None and model.recompute.of is not None:
        values["gradient_checkpointing"] = (
            model.recompute._replace(of=True) if model.recompute.of == "unsloth" else model.recompute
        )
        if model.recompute_arguments is not None:
            values["gradient_checkpointing_kwargs"] = model.recompute_arguments
    kind = model.name.removesuffix(".from_config")
    if any(word in kind for word in ("Image", "Vision", "ViT", "CLIP", "Speech", "Audio", "Whisper", "Wav2Vec", "CTC")):
        refused.append((model.at, f"`{kind}` works on images or sound, which has no memory model here", "", ()))
    if plain(values.get("device_map")) == "cpu" or any(what == "to cpu" for what, _ in model.changes):
        refused.append((model.at, "the model is placed on the CPU: the job runs on no GPU", "", ()))


def _adapter(adapter: PythonValue, values: dict[str, PythonValue], refused: list[Any]) -> None:
    """A LoraConfig, under the names of TRL's command line."""
    config = adapter.of
    if not isinstance(config, MadeObject):
        values["use_peft"] = adapter._replace(of=UNKNOWN)
        return
    if config.name != "LoraConfig":
        refused.append((config.at, f"`{config.name}` has no memory model here: LoraConfig has one", "", ()))
    values["use_peft"] = PythonValue(True, config.at)
    for name, value in _keywords_of(config):
        key = KEYS.words["lora"].get(name)
        if key is not None:
            values[key] = value
        elif name.startswith("**"):
            _open(refused, value, f"`{name}`: what is in it is not known", ("training.lora.rank",))


def _frozen(run: FollowedFile, refused: list[Any], *, adapted: bool) -> None:
    """Weights that the file freezes or sets free itself."""
    for each in run.things:
        if each.name != "requires_grad":
            continue
        trains = each.arguments[0].of
        if adapted and trains is False:
            continue
        message = "the file chooses itself which weights train (`requires_grad`)"
        refused.append((each.at, message, KEYS.words["answers"]["training.freeze"], ("training.freeze",)))
        return


def _rows(run: FollowedFile, trainer: MadeObject, objective: str, values: dict[str, PythonValue]) -> bool:
    """How long rows are, where only the tokenizer's call says it; whether each is padded to that."""
    if objective:
        return False
    found = _cuts(run)
    lengths = [each.arguments[0] for each in found if each.arguments]
    if not lengths and not found:
        scope = run.main.names
        name = next((name for name in KEYS.names["blocks"] if name in scope and isinstance(scope[name].of, int)), "")
        if name and any("group" in each for each in scope):
            values["max_length"] = scope[name]
            return True
        return False
    left = next((each for each in lengths if not isinstance(each.of, int)), None)
    if len(lengths) == len(found):
        values["max_length"] = left if left is not None else max(lengths, key=lambda each: each.of)
    return any(plain(each.get("padding")) == "max_length" for each in found)


def _cuts(run: FollowedFile) -> list[MadeObject]:
    """The calls that cut rows, each with its length, or with none where it is the tokenizer's own."""
    return [each for each in run.things if each.name in ("rows", "cut")]


def _tokens(run: FollowedFile) -> PythonValue | None:
    """The longest row that the file cuts itself; None where one of them is not known, or none is cut."""
    lengths = [each.arguments[0] for each in _cuts(run) if each.arguments]
    if not lengths or not all(isinstance(each.of, int) for each in lengths):
        return None
    return max(lengths, key=lambda each: each.of)


def runs_on_gpu(code: PythonCode) -> bool:
    """Whether nothing that is imported says that it is a job for other devices."""
    found = {
        each.name.partition(".")[0] for _, node in _nodes(code) if isinstance(node, ast.Import) for each in node.names
    }
    return found.isdisjoint(KEYS.names["no_gpu"])


def imports_others(code: PythonCode) -> bool:
    """Whether a file imports what may be a module of the user's own, which may make the trainer."""
    known = {*OTHERS, *sys.stdlib_module_names, *KEYS.words["others"]}
    return any(
        (isinstance(node, ast.ImportFrom) and (node.level > 0 or (node.module or "").partition(".")[0] not in known))
        or (isinstance(node, ast.Import) and any(each.name.partition(".")[0] not in known for each in node.names))
        for _, node in _nodes(code)
    )


def reason(code: PythonCode, run: FollowedFile) -> tuple[Location, str]:
    """Where and why a file has no job that memcheck reads."""
    imported: dict[str, Location] = {}
    defined: dict[str, Location] = {}
    loops: list[Location] = []
    uncalled: Location | None = None
    for cell, node in _nodes(code):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            for name in names:
                imported.setdefault(name.partition(".")[0], place(cell, node))
        elif isinstance(node, ast.ClassDef):
            bases = [named(each).strip("`") for each in node.bases]
            if any(each.endswith("Trainer") for each in bases):
                defined.setdefault(node.name, place(cell, node))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "backward":
            loops.append(place(cell, node))
        elif isinstance(node, ast.Call) and named(node.func).strip("`").rpartition(".")[2] in TRAINERS:
            uncalled = uncalled or place(cell, node)
    start = next(iter(code.broken), None) if not any(cell.tree for cell in code.cells) else None
    if start is not None:
        return start, "its code is no Python that can be read"
    for name, what in KEYS.words["others"].items():
        if name in imported:
            return imported[name], f"{what} (`{name}`)"
    if uncalled is not None:
        return (
            uncalled,
            "this line makes a trainer, in code that nothing in the file calls: name the file that calls it",
        )
    if loops:
        return loops[0], "it trains in a loop of its own: of these, memcheck reads one model's with its own loss"
    if defined:
        name, at = next(iter(defined.items()))
        return at, f"it defines `{name}` and trains nothing itself: name the file that calls it"
    return Location(code.path, Span(1, 1, 1, 2)), "no trainer is made in it"


def _nodes(code: PythonCode) -> Iterator[tuple[Any, ast.AST]]:
    for cell in code.cells:
        if cell.tree is not None:
            yield from ((cell, node) for node in walked(cell.tree))
