"""The command that a refusal names, with what the file says already; and what a team's own YAML says."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from memcheck.catalog.names import AmbiguousNameError, UnknownNameError, find_gpu, find_model
from memcheck.plan.foreign import KEY, ForeignKey, instance, meanings
from memcheck.plan.schema import load_schema
from memcheck.record import Record

EXAMPLE = "h100-80gb"
"""The GPU in an example command, where the user stated none."""
LIKE = "llama-3.1-8b"
"""The model of a command that only shows how one is written."""
LONGEST = 1100
"""Characters of a launch that is repeated whole: a longer one is named by its line."""
_MADE = re.compile(r"^nvidia-|^tesla-|-mega(?=-)|-sxm\d?(?=-|$)|-hbm\d\w?$|-141gb$")
"""What platforms add to the name of a GPU."""
NO_NAME = "memcheck finds no model's name in it"
"""How the help for a file without one begins."""
INDENT = "    "
"""Before a command in a help, as code has it in Markdown."""


class Machine(Record):
    """What runs a job, as far as it is said."""

    gpu: str = ""
    """A name of the catalog."""
    gpus_per_node: int = 0
    """GPUs per node; 0 where it is not stated."""
    nodes: int = 1

    def stated(self, beside: Mapping[str, object]) -> Machine:
        """With what the command line says, which goes first."""
        gpu, per_node, nodes = (beside.get(key) for key in ("gpu", "gpus_per_node", "nodes"))
        return Machine(
            gpu=str(gpu) if isinstance(gpu, str) else self.gpu,
            gpus_per_node=per_node if isinstance(per_node, int) else self.gpus_per_node,
            nodes=nodes if isinstance(nodes, int) else self.nodes,
        )

    def filled(self, other: Machine) -> Machine:
        """With what another statement says, where this one is silent."""
        return Machine(
            gpu=self.gpu or other.gpu,
            gpus_per_node=self.gpus_per_node or other.gpus_per_node,
            nodes=self.nodes if self.nodes > 1 else other.nodes,
        )

    @property
    def said(self) -> dict[str, object]:
        """What is known, by the names of the command line."""
        counts = {"gpus_per_node": self.gpus_per_node, "nodes": self.nodes if self.nodes > 1 else 0}
        said: dict[str, object] = {key: count for key, count in counts.items() if count}
        return {"gpu": self.gpu, **said} if self.gpu else said

    def flags(self) -> list[str]:
        """For a config or a command."""
        per_node = ["--gpus-per-node", str(self.gpus_per_node)] if self.gpus_per_node else []
        return ["--gpu", self.gpu or EXAMPLE, *per_node, *(["--nodes", str(self.nodes)] if self.nodes > 1 else [])]

    def counted(self) -> list[str]:
        """For a model by its name."""
        if self.nodes > 1:
            return [*Machine(gpu=self.gpu, nodes=self.nodes, gpus_per_node=self.gpus_per_node or 1).flags()]
        return ["--gpu", self.gpu or EXAMPLE, "--gpus", str(self.gpus_per_node or 1)]

    @property
    def advice(self) -> str:
        """What is left to the reader to put in; empty where the GPU is said."""
        return "" if self.gpu else f", with your GPU in place of {EXAMPLE}"


NO_MACHINE = Machine()


def command(intro: str, *words: str) -> str:
    """A help of a sentence and a command below it."""
    return f"{intro}:\n{INDENT}{shlex.join(words)}"


def model_named(name: object) -> str:
    """The catalog's name of a model, or of one that the last part of a path is called by; empty where it has none."""
    if not isinstance(name, str) or not 0 < len(name) < 200:
        return ""
    return _model(name) or _model(name.rstrip("/").rpartition("/")[2])


def _model(name: str) -> str:
    try:
        return find_model(name).name
    except UnknownNameError:
        return ""


def gpu_named(name: object) -> tuple[str, int]:
    """The catalog's name of a GPU, and how many a machine of this name has; empty and 0 where nothing says it."""
    text = str(name).strip().replace("_", "-") if isinstance(name, str) else ""
    machine = instance(str(name)) if text else None
    plain = _MADE.sub("", text.lower())
    whole = f"{plain}b" if plain.endswith("g") else f"{plain}gb"
    return machine or (next(filter(None, map(_gpu, (text, plain, whole, plain.rpartition("-")[0]))), ""), 0)


def _gpu(name: str) -> str:
    try:
        return find_gpu(name).name if name else ""
    except AmbiguousNameError as error:
        return min(error.close)  # A100: the smaller card, in a command that shows which it is
    except UnknownNameError:
        return ""


def of_model(
    intro: str, name: object, machine: Machine, *, method: str = "", length: int = 0, batch: int = 0, zero: int = 0
) -> str:
    """Estimate a model by its name, or find out what it is called here."""
    known = model_named(name)
    if not known:
        unknown = isinstance(name, str) and bool(name)
        what = f"`{str(name)[:80]}` is not in the catalog" if unknown else NO_NAME
        intro = f"{what}. `memcheck estimate MODEL --gpu NAME` estimates each model that this command lists"
        return command(intro, "memcheck", "list", "models")
    said = [*machine.counted()]
    for flag, value in (("--method", method), ("--zero-stage", zero), ("--micro-batch-size", batch)):
        said += [flag, str(value)] if value else []
    said += ["--sequence-length", str(length)] if length else []
    return command(intro + machine.advice, "memcheck", "estimate", known, *said)


def of_command(intro: str, words: Sequence[str], machine: Machine) -> str:
    """Help text with the command that estimates a launch line, ``memcheck estimate -- ...``.

    ``intro``: the first words of the text. A long launch line is not repeated, but named.
    """
    whole = ["memcheck", "estimate", *machine.flags(), "--", *words]
    if len(shlex.join(whole)) > LONGEST:
        start = ["memcheck", "estimate", *machine.flags(), "--"]
        return f"{intro}{machine.advice}: paste it after `{shlex.join(start)}`"
    return command(intro + machine.advice, *whole)


def of_file(intro: str, path: str, machine: Machine) -> str:
    """Help text with the command that estimates another file. ``intro``: its first words."""
    return command(intro + machine.advice, "memcheck", "estimate", path, *machine.flags())


def of_serving(intro: str, name: object, machine: Machine, *, weights: str, length: int, kv: str, tensor: int) -> str:
    """Judge a plan of inference, which stands in the command."""
    known = model_named(name)
    if not known:
        return of_model(intro, name, machine)
    gpus = machine.gpus_per_node or tensor
    plan = (
        f"memcheck: 1, model: {known}, hardware: {{gpu: {machine.gpu or EXAMPLE}, gpus_per_node: {max(gpus, tensor)}}}"
    )
    plan += f", parallelism: {{tensor: {tensor}}}" if tensor > 1 else ""
    served = f"batch_size: 1, context_length: {length or 4096}, weights: {weights or 'bf16'}"
    served += f", kv_cache: {kv}" if kv else ""
    text = shlex.quote(f"{{{plan}, inference: {{{served}}}}}")
    return f"{intro}{machine.advice}:\n{INDENT}echo {text} | memcheck estimate -"


_MODEL = ("model", "model.config")
_SIZES = {
    "training.micro_batch_size": "batch",
    "inference.batch_size": "batch",
    "training.sequence_length": "length",
    "inference.context_length": "length",
    "hardware.gpus_per_node": "gpus",
    "hardware.nodes": "nodes",
}
_OWN: Mapping[str, tuple[ForeignKey, ...]] = {
    name: (ForeignKey("a plan", KEY, key),)
    for name, key in {
        **{key.rpartition(".")[2]: key for key in _SIZES if key != "inference.batch_size"},
        "gpu": "hardware.gpu",
        "gpus": "hardware.gpus_per_node",
        "batch": "training.micro_batch_size",
        "max_len": "training.sequence_length",
        "length": "training.sequence_length",
    }.items()
}
"""Names that a plan has, too, and plain ones."""
_LIKE_A_MODEL = re.compile(r"[A-Za-z][\w./-]{0,150}\d[\w.-]{0,40}")
"""A value that may be a model's name, whatever its key is."""
MOST_MODELS = 20
"""Names that are looked up in the catalog."""


class OwnYaml(Record):
    """What a file's keys say, as far as they are keys that some framework has."""

    model: str
    method: str
    gpu: str
    batch: int
    length: int
    gpus: int
    nodes: int

    def way_on(self, beside: Mapping[str, object]) -> str:
        """Help text with the command nearest to the file's keys. ``beside``: what the command line states."""
        machine = Machine(gpu=self.gpu, gpus_per_node=self.gpus, nodes=max(1, self.nodes)).stated(beside)
        intro = "the nearest command, from its keys"
        return of_model(intro, self.model, machine, method=self.method, batch=self.batch, length=self.length)


def seen(values: Mapping[str, object]) -> OwnYaml:
    """What a file says under names that some tool has, at any depth: the first of each."""
    sizes: dict[str, int] = {}
    named: list[str] = []
    others: list[str] = []
    method, gpu = "", ""
    for name, value in _leaves(values):
        if isinstance(value, str) and (name.lower() in ("name", "path", "id", "hf_id") or "model" in name.lower()):
            named.append(value)
        elif isinstance(value, str) and _LIKE_A_MODEL.fullmatch(value):
            others.append(value)
        if "lora" in name.lower() and value is not False and not method:
            method = "qlora" if "qlora" in name.lower() else "lora"
        for each in _OWN.get(name.lower(), ()) or meanings(name):
            if each.kind != KEY:
                continue
            if each.text in _MODEL and isinstance(value, str):
                named.append(value)
            elif each.text == "hardware.gpu" and not gpu:
                gpu, count = gpu_named(value)
                if count:
                    sizes.setdefault("gpus", count)
            elif each.text == "training.method":
                method = _method(method, each.words.get(str(value).lower(), ""))
            elif each.text in _SIZES and type(value) is int and 0 < value < 10**7:
                sizes.setdefault(_SIZES[each.text], value)
    looked = dict.fromkeys([*named[:MOST_MODELS], *others[:MOST_MODELS]])
    known = next((name for name in looked if model_named(name)), next(iter(named), ""))
    return OwnYaml(
        model=known,
        method=method,
        gpu=gpu,
        batch=sizes.get("batch", 0),
        length=sizes.get("length", 0),
        gpus=min(sizes.get("gpus", 0), 4096),
        nodes=min(sizes.get("nodes", 1), 4096),
    )


def _method(before: str, said: str) -> str:
    return "qlora" if "qlora" in (before, said) else said or before


def _leaves(values: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Every scalar with the last word of its key; None for a section."""
    waiting: list[tuple[str, object]] = [("", values)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, dict):
            if value and name:
                yield name, None
            waiting += reversed([(str(key), each) for key, each in value.items()])
        elif isinstance(value, list):
            waiting += [(name, each) for each in reversed(value[:100])]
        else:
            yield name.rpartition(".")[2], value


def is_meant_as_plan(values: Mapping[str, object]) -> bool:
    """Whether a mapping without the mark is a plan all the same: most keys of its sections are those of a plan."""
    sections = load_schema()["definitions"]
    known = unknown = 0
    for section in ("hardware", "training", "parallelism", "inference"):
        below = values.get(section)
        names = sections[section]["properties"]
        if isinstance(below, dict):
            hits = sum(name in names for name in below)
            known, unknown = known + hits, unknown + len(below) - hits
    return known > unknown
