"""Keys that other tools have and a plan has not: which key of the plan it is, or that it changes no byte.

``foreign.json`` is written from the tables of the readers of configs (``python -m memcheck.configs.key_index``). It
is read only for a key that no plan has.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from memcheck.edge.lookalike import skeleton
from memcheck.edge.own_json import read_own_json
from memcheck.plan.lookup import flow, listed, schema_of, shorten
from memcheck.plan.schema import conforms, load_schema
from memcheck.plan.synonyms import ARCHITECTURE, SHAPES
from memcheck.record import Record

INDEX = os.path.join(os.path.dirname(__file__), "foreign.json")
INSTANCES = os.path.join(os.path.dirname(__file__), "instances.json")
KEY, SAID, NONE, LACKS = "key", "said", "none", "lacks"
"""A plan has a key for it | other keys say it | it changes no byte | memcheck has no model of it."""
SERVED = {
    "training.precision": "inference.weights",
    "training.precision.params": "inference.weights",
    "training.micro_batch_size": "inference.batch_size",
    "training.sequence_length": "inference.context_length",
}
"""Keys of training, and those of a plan of inference for the same thing."""
_MOST_WORDS = 6
DEEPEST = 8
"""Words of a dotted key that are looked at, from its end."""


class ForeignKey(Record):
    """A key of another tool, and the plan's key for the same thing, or why there is none."""

    tool: str
    kind: str
    text: str
    """The dotted key of the plan; a reason otherwise, which may be empty."""
    words: Mapping[str, str] = {}
    """The tool's values in small letters, and the plan's."""


def plain(key: str) -> str:
    """``micro-batch-size``, ``microBatchSize`` and ``Micro_Batch_Size`` are one key, in letters that look so, too."""
    return skeleton(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).replace("-", "_").replace(" ", "_"))


def answered(key: str, tokens: list[str], value: object, *, serving: bool = False) -> str:
    """The help for a key that stands below ``tokens``; empty where no tool that is known has it.

    ``serving``: the plan is one of inference.
    """
    found = _found(plain(key), [plain(token) for token in tokens])
    if not found:
        return ""
    keys = [each for each in found if each.kind == KEY]
    if keys:
        told = dict.fromkeys(_written(each, value, serving=serving) for each in keys)
        known = [each for each in told if re.match(r"it is written `[\w.]+: ", each)]
        return "; ".join(each for each in told if each in known or not _of_same_key(each, known))
    return "; ".join(dict.fromkeys(map(_left_out, found)))


def _of_same_key(help: str, known: list[str]) -> bool:
    """Whether another answer says the value of the same key."""
    key = re.match(r"it is written `([\w.]+)`", help)
    return key is not None and any(each.startswith(f"it is written `{key[1]}: ") for each in known)


def meanings(key: str) -> list[ForeignKey]:
    """What tools mean by a key, wherever it stands."""
    return _found(plain(key), [])


def _found(key: str, tokens: list[str]) -> list[ForeignKey]:
    """By the whole path, by shorter and shorter ends of it."""
    path = [*tokens, *key.rsplit(".", DEEPEST)][-DEEPEST:]
    for start in range(len(path)):
        rows = _index().get(".".join(path[start:]))
        if rows:
            return [ForeignKey(*row) for row in rows]
    return []


@cache
def _index() -> dict[str, list[list[Any]]]:
    found: dict[str, list[list[Any]]] = read_own_json(INDEX)
    return found


def _written(answer: ForeignKey, value: object, *, serving: bool) -> str:
    key, name = answer.text, answer.text.rpartition(".")[2]
    if key == f"{ARCHITECTURE}{name}":
        key = f"{ARCHITECTURE}{SHAPES.get(name, name)}"
    return served(key, value, answer.words) if serving else written(key, value, answer.words)


NO_WORDS: Mapping[str, str] = {}


def written(key: str, value: object, words: Mapping[str, str] = NO_WORDS) -> str:
    """The help that names a key of the plan, with the value where it is one that the plan takes."""
    said = f"it is written `{key}`"
    if value is None or isinstance(value, (dict, list)):
        return said
    if words:
        text = str(value).lower()
        meant = words.get(text, words.get(text.partition(" ")[0]))  # `full_shard auto_wrap`
        if meant is None:
            more = " only" if len(words) <= _MOST_WORDS else " and more"
            return f"{said}, which has a value for {listed(list(words)[:_MOST_WORDS], 'and')}{more}"
        return f"it is written `{key}: {meant}`"
    machine = instance(str(value)) or counted(str(value)) if key == "hardware.gpu" else None
    if machine is not None:
        return f"it is written `{key}: {machine[0]}`, with `hardware.gpus_per_node: {machine[1]}`"
    schema = schema_of(key, load_schema())
    if schema is None or not conforms(value, schema, load_schema()):
        return said
    return f"it is written `{key}: {shorten(flow(value))}`"


def served(key: str, value: object, words: Mapping[str, str] = NO_WORDS) -> str:
    """The help that names a key of a plan of inference, which has no key of `training`."""
    own = SERVED.get(key, key)
    if own.startswith("training."):
        return f"leave it out: it is `{own}` of a training plan, and this plan is of inference"
    if own != key and written(own, value) != written(own, None):
        return written(own, value)  # inference takes the value as it is
    return written(own, value, words)


def instance(name: str) -> tuple[str, int] | None:
    """The GPU and how many of it a cloud's machine of this type has; None for any other word."""
    found = _instances().get(name.strip().lower())
    return None if found is None else (found[0], found[1])


def counted(text: str) -> tuple[str, int] | None:
    """The name and the number of ``H100:8``, as schedulers write GPUs; None for any other word."""
    name, colon, number = text.strip().rpartition(":")
    whole = number.isdecimal() and number.isascii() and len(number) < 4
    return (name, int(number)) if colon and name and whole else None


@cache
def _instances() -> dict[str, tuple[str, int]]:
    found: dict[str, tuple[str, int]] = read_own_json(INSTANCES)
    return found


def _left_out(answer: ForeignKey) -> str:
    if answer.kind == NONE:
        reason = f"{answer.tool}: {answer.text}" if answer.text else f"a key of {answer.tool}"
        return f"leave it out: it changes no byte of a GPU ({reason})"
    if answer.kind == SAID:
        return f"leave it out: {answer.text}"
    return f"leave it out: memcheck does not model it, and the estimate is without it ({answer.tool}: {answer.text})"
