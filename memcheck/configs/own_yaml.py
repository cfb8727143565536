"""YAML of a team's own, neither a plan nor a framework's config: the nearest command, from the keys that it has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from memcheck.configs.go_on import Machine, gpu_named, model_named, of_model
from memcheck.plan.foreign import KEY, ForeignKey, meanings
from memcheck.plan.schema import load_schema
from memcheck.record import Record

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
