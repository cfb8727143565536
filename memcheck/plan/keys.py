"""What an unknown key was meant to be."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any

from memcheck.edge.closest import closest
from memcheck.edge.lookalike import other_letters
from memcheck.plan.foreign import answered, plain, served, written
from memcheck.plan.lookup import branches, flow, key_path, listed
from memcheck.plan.renamed import renamed
from memcheck.plan.schema import Schema, load_schema
from memcheck.plan.synonyms import ARCHITECTURE, KEYS, SHAPES


def unknown_key(
    key: str, tokens: list[str], mapping: dict[str, Any], schema: Schema, *, serving: bool = False
) -> tuple[str, str]:
    """Help for a key that a mapping does not have, and the text to write when there is one right one.

    ``serving``: the plan is one of inference.
    """
    names = schema["properties"]
    name, colon, value = key.partition(":")
    if colon and name in names:
        return f"write `{name}: {value}`, with a space after the colon", ""
    same = next((name for name in names if _bare(name) == _bare(key)), None)
    if same is not None:
        letters = "" if key.isascii() else f" in plain letters, not with {other_letters(key)}"
        return f"write `{same}`{letters}", same if same not in mapping else ""
    meant = misspelled(key, tokens, names)
    if meant:
        return f"did you mean `{meant}`?", meant if meant not in mapping and _only(key, meant, names) else ""
    elsewhere = _elsewhere(key, tokens)
    answer = answered(key, tokens, mapping.get(key), serving=serving)
    if answer and (serving or not elsewhere or any(f"`{each}" in answer for each in elsewhere) or _second(elsewhere)):
        return answer, ""
    if len(elsewhere) > 1 and not serving:
        return f"it is written {listed(elsewhere)}", ""
    if elsewhere:
        return (served if serving else written)(elsewhere[0], mapping.get(key)), ""
    if len(names) <= 12:
        return f"{key_path(tokens)} has {listed(names, 'and')}", ""
    return "`memcheck schema` prints every key", ""


def described(mapping: dict[str, Any]) -> str:
    """The help for a model that is given as sizes alone: the same sizes where a plan has them; empty without any."""
    sizes = {SHAPES[plain(key)]: value for key, value in mapping.items() if plain(key) in SHAPES}
    whole = {name: value for name, value in sizes.items() if type(value) is int and abs(value) < MOST_SIZE}
    if not whole:
        return ""
    return f"write `architecture: {flow({'model_type': 'llama', **whole})}`, with the model_type of its code"


MOST_SIZE = 10**9
"""Numbers from here on are no size of a model."""


def misspelled(key: str, tokens: list[str], names: Schema) -> str:
    """The key of the same mapping that was meant; empty when none is close enough."""
    snake = plain(key)
    for name in names:
        if _bare(name) == _bare(key):
            return name
    entry = renamed(".".join(tokens), key)
    if entry is not None:
        return entry.new
    for known in (f"{tokens[-1]}.{snake}" if tokens else snake, snake):
        section, _, name = KEYS.get(known, "").rpartition(".")
        if name in names and section == ".".join(tokens):
            return name
    near = next(iter(closest(snake, names, 1, 0.7)), "")
    answer = answered(key, tokens, None)
    if answer and f"`{'.'.join((*tokens, near))}`" in answer and closest(snake, [near], 1, 0.85):
        return near  # another tool's word is this mapping's own key but for its ending
    if answer or _elsewhere(key, tokens):
        return ""
    return near


def _only(key: str, meant: str, names: Schema) -> bool:
    """Whether a slip of the finger explains the key, and no other key of the mapping is anything like it."""
    snake = plain(key)
    return closest(snake, names, 2, 0.7) == [meant] and bool(closest(snake, [meant], 1, 0.85))


def _second(places: list[str]) -> bool:
    """Whether a key only stands where a model is described roughly, or a second one is."""
    return all(each.startswith(("model.rough.", "training.teacher.")) for each in places)


def _elsewhere(key: str, tokens: list[str]) -> list[str]:
    """Where in a plan a key of this name stands; at most two places."""
    snake = plain(key)
    if tokens == ["model"] and snake in SHAPES:
        return [f"{ARCHITECTURE}{SHAPES[snake]}"]
    for known in (f"{tokens[-1]}.{snake}" if tokens else snake, snake):
        if known in KEYS:
            return [KEYS[known]]
    return _places().get(snake, [])[:2]


@cache
def _places() -> dict[str, list[str]]:
    """Every key of a plan by its name, with where it stands."""
    found: dict[str, list[str]] = {}
    root = load_schema()
    for path in _paths(root, root, ""):
        found.setdefault(path.rpartition(".")[2], []).append(path)
    return found


def _paths(schema: Schema, root: Schema, prefix: str) -> Iterator[str]:
    for each in branches(schema, root):
        for name, item in each.get("properties", {}).items():
            yield f"{prefix}{name}"
            yield from _paths(item, root, f"{prefix}{name}.")


@lru_cache(maxsize=1024)
def _bare(key: str) -> str:
    return plain(key).replace("_", "")
