"""What an unknown key, or a scalar that does not fit, was meant to be."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any

from memcheck.edge.lookalikes import other_letters
from memcheck.errors import closest
from memcheck.plan.compose import ODD_WORDS, WORDS, looks_numeric, number
from memcheck.plan.finding import BOOLEAN_TRAP, INVALID_VALUE, NUMBER_TRAP, WRONG_TYPE, Code
from memcheck.plan.foreign import (
    ARCHITECTURE,
    FRAMEWORKS,
    KEYS,
    SHAPES,
    VALUES,
    answered,
    plain,
    renamed,
    served,
    written,
)
from memcheck.plan.schema import Schema, branches, conforms, flow, is_plain, key_path, listed, load_schema, types
from memcheck.record import Record

_UNIT = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(?:[A-Za-z/]+)")
_THOUSANDS = re.compile(r"([0-9]+) ?[kK]")
_GROUPED = re.compile(r"[0-9]{1,3}(?:[,' ][0-9]{3})+")


class Mend(Record):
    """Why a value does not fit, and what to write."""

    code: Code
    why: str = ""
    """Replaces ``not FOUND`` in the message."""
    help: str = ""
    text: str = ""
    """The one right text to write instead; empty when there is a choice."""


def mend(value: object, text: str, schema: Schema, root: Schema) -> Mend:
    """Return the first explanation that holds; ``text`` is the scalar as written, empty when it is none."""
    for guess in _guesses(value, text, schema, root):
        if not guess.text or conforms(_read(guess.text), schema, root):
            return guess
    wrong_type = not any(conforms(value, {"type": name}, root) for name in types(schema, root))
    return Mend(WRONG_TYPE if wrong_type and types(schema, root) else INVALID_VALUE)


def _guesses(value: object, text: str, schema: Schema, root: Schema) -> Iterator[Mend]:
    """Yield explanations of a scalar that does not fit its schema, the likeliest first."""
    if not text or isinstance(value, (dict, list)):
        return
    if is_plain(text):
        yield from _plain(value, text, schema, root)
    elif isinstance(value, str) and value and (value in WORDS or looks_numeric(value) or number_like(value)):
        yield Mend(WRONG_TYPE, "but its quotes make it text", f"write `{value}`", text=value)
        yield Mend(
            WRONG_TYPE, "but its quotes make it text", f"write `{plain_number(value)}`", text=plain_number(value)
        )
    if isinstance(value, str):
        yield from _word(value, schema, root)
    if "array" in types(schema, root) and isinstance(value, (str, int, float)):
        yield Mend(WRONG_TYPE, help=f"write `[{text}]`", text=f"[{text}]")


def _too_small(value: float, schema: Schema, root: Schema) -> Iterator[Mend]:
    """Yield a number below the least that the schema takes."""
    bounds = [each["minimum"] for each in branches(schema, root) if "minimum" in each]
    if bounds and value < min(bounds):
        yield Mend(INVALID_VALUE, help=f"the least is `{min(bounds)}`")


def _plain(value: object, text: str, schema: Schema, root: Schema) -> Iterator[Mend]:
    """Yield explanations of an unquoted scalar."""
    if isinstance(value, str):
        if looks_numeric(text):
            better = plain_number(text)
            why = f"and YAML reads `{text}` as text"
            yield Mend(NUMBER_TRAP, why, f"write `{better}`", text=better)
            if types(schema, root) & {"integer", "number"}:
                yield Mend(NUMBER_TRAP, why, f"a number is written `{better}`")
        yield from _quantity(text, schema, root)
        return
    if text in ODD_WORDS:
        yield from _boolean_word(text, schema, root)
    elif value is not None and not isinstance(value, bool):
        if isinstance(value, (int, float)):
            yield from _too_small(value, schema, root)
        yield Mend(NUMBER_TRAP, f"and YAML reads `{text}` as a number", f'quote it: `"{text}"`', text=f'"{text}"')
        if isinstance(value, (int, float)) and 1 < value <= 100:
            yield Mend(INVALID_VALUE, help=f"write `{text}%`", text=f"{text}%")
    elif isinstance(value, bool):
        yield from _switch(value, schema, root)
        yield Mend(WRONG_TYPE, f"and YAML reads `{text}` as a boolean", f'quote it: `"{text}"`', text=f'"{text}"')


def _boolean_word(text: str, schema: Schema, root: Schema) -> Iterator[Mend]:
    """Yield explanations of an unquoted word that YAML reads as a boolean."""
    code = BOOLEAN_TRAP._replace(severity="error")
    meaning = "true" if WORDS[text] else "false"
    why = f"and YAML reads `{text}` as the boolean {meaning}"
    yield Mend(code, why, f'quote it: `"{text}"`', text=f'"{text}"')
    names = [name for each in branches(schema, root) for name in each.get("enum", ())]
    if not WORDS[text] and "none" in names:
        yield Mend(code, why, "write `none`", text="none")
    if "string" in types(schema, root):
        yield Mend(code, why, f"write {listed(names)}" if names else "quote it")


def _switch(value: bool, schema: Schema, root: Schema) -> Iterator[Mend]:
    """Yield on or off, where the schema has a word for how much: ``full`` is what other tools switch on."""
    names = [name for each in branches(schema, root) for name in each.get("enum", ())]
    word = "full" if value else "none"
    if {"full", "none"} <= set(names):
        others = [name for name in names if value and name not in {"full", "none"}]
        more = f", or {listed(others)} for less of it" if value and others else ""
        yield Mend(WRONG_TYPE, help=f"write `{word}`{more}", text="" if value and others else word)


def _quantity(text: str, schema: Schema, root: Schema) -> Iterator[Mend]:
    """Yield numbers with a unit where only the number may stand."""
    if not types(schema, root) & {"integer", "number"}:
        return
    thousands = _THOUSANDS.fullmatch(text)
    if thousands and "integer" in types(schema, root):
        count = int(thousands[1])
        help = f"write `{count * 1024}` ({count} x 1024), or `{count * 1000}` if thousands are meant"
        yield Mend(WRONG_TYPE, help=help)
    if _GROUPED.fullmatch(text):
        yield Mend(WRONG_TYPE, help=f"write `{re.sub('[^0-9]', '', text)}`")
    unit = _UNIT.fullmatch(text)
    if unit and text.endswith("GiB"):
        yield Mend(WRONG_TYPE, help=f"write `{unit[1]}`", text=unit[1])
    if unit:
        yield Mend(WRONG_TYPE, help="write the number alone; the key's name says its unit")


def _word(value: str, schema: Schema, root: Schema) -> Iterator[Mend]:
    """Yield another spelling of one of the words that the schema lists."""
    names = [name for each in branches(schema, root) for name in each.get("enum", ())]
    spelled = _spelling(value)
    meant = next((name for name in names if _spelling(name) == spelled), None)
    foreign = VALUES.get(value.lower().replace("_", "-").replace(" ", "-"))
    if meant is not None:
        yield Mend(INVALID_VALUE, help=f"write `{meant}`", text=meant)
    other = FRAMEWORKS.get(value.lower().replace("_", "-").replace(" ", "-"))
    if other is not None and schema.get("title") == "Framework":
        yield Mend(INVALID_VALUE, help=other)
    if foreign in names:
        yield Mend(INVALID_VALUE, help=f"did you mean `{foreign}`?")
    begun = [name for name in names if value and name.startswith(f"{value.lower()}-")]
    if begun:
        yield Mend(INVALID_VALUE, help=f"did you mean {listed(begun)}?")
    if names:
        for close in closest(value.lower(), names, 1):
            yield Mend(INVALID_VALUE, help=f"did you mean `{close}`?")
    percent = re.fullmatch(r"([0-9.]+) *(?:%|percent|pct)", value)
    if percent:
        yield Mend(INVALID_VALUE, help=f"write `{percent[1]}%`", text=f"{percent[1]}%")


def _spelling(word: str) -> str:
    return re.sub(r"[-_ .]", "", word).lower()


def number_like(text: str) -> bool:
    """Whether the text would be a number without its quotes."""
    return bool(text) and text[0] in "0123456789+-." and not isinstance(number(text)[0], str)


def plain_number(text: str) -> str:
    """Return ``1e-5``, ``0o17`` as a number that every YAML reader understands: ``1.0e-5``, ``15``."""
    sign = "-" if text.startswith("-") else ""
    body = text.lstrip("+-").lower()
    if body.startswith("0o"):
        return f"{sign}{int(body, 8)}"
    mantissa, e, exponent = body.partition("e")
    if not e or not mantissa or not exponent:
        return text
    if not exponent.startswith("-") and len(exponent) < 4 and float(body) < 2**53 and float(body).is_integer():
        return f"{sign}{int(float(body))}"
    whole, _, decimals = mantissa.partition(".")
    signed = exponent if exponent[0] in "+-" else f"+{exponent}"
    return f"{sign}{whole or '0'}.{decimals or '0'}e{signed}"


def _read(text: str) -> object:
    """Return the value that YAML reads from a text that is written here."""
    if text.startswith('"'):
        return text[1:-1]
    if text.startswith("["):
        return [_read(text[1:-1])]
    if text in WORDS:
        return WORDS[text]
    return number(text)[0] if text[0] in "0123456789+-." else text


def unknown_key(
    key: str, tokens: list[str], mapping: dict[str, Any], schema: Schema, *, serving: bool = False
) -> tuple[str, str]:
    """Return help for a key that a mapping does not have, and the text to write when there is one right one.

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
    if not serving:
        elsewhere = [each for each in elsewhere if not each.startswith("inference.")]
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
    """Return the help for a model that is given as sizes alone: the same sizes where a plan has them; empty without
    any.
    """
    sizes = {SHAPES[plain(key)]: value for key, value in mapping.items() if plain(key) in SHAPES}
    whole = {name: value for name, value in sizes.items() if type(value) is int and abs(value) < MOST_SIZE}
    if not whole:
        return ""
    return f"write `architecture: {flow({'model_type': 'llama', **whole})}`, with the model_type of its code"


MOST_SIZE = 10**9
"""Numbers from here on are no size of a model."""


def misspelled(key: str, tokens: list[str], names: Schema) -> str:
    """Return the key of the same mapping that was meant; empty when none is close enough."""
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
    """Say whether a slip of the finger explains the key, and no other key of the mapping is anything like it."""
    snake = plain(key)
    return closest(snake, names, 2, 0.7) == [meant] and bool(closest(snake, [meant], 1, 0.85))


def _second(places: list[str]) -> bool:
    """Whether a key only stands where a model is described roughly, or a second one is."""
    return all(each.startswith(("model.rough.", "training.teacher.")) for each in places)


def _elsewhere(key: str, tokens: list[str]) -> list[str]:
    """Say where in a plan a key of this name stands; at most two places."""
    snake = plain(key)
    if tokens == ["model"] and snake in SHAPES:
        return [f"{ARCHITECTURE}{SHAPES[snake]}"]
    for known in (f"{tokens[-1]}.{snake}" if tokens else snake, snake):
        if known in KEYS:
            return [KEYS[known]]
    return _places().get(snake, [])[:2]


@cache
def _places() -> dict[str, list[str]]:
    """Return every key of a plan by its name, with where it stands."""
    found: dict[str, list[str]] = {}
    root = load_schema()
    for path in _paths(root, root, ""):
        found.setdefault(path.rpartition(".")[2], []).append(path)
    return found


def _paths(schema: Schema, root: Schema, prefix: str) -> Iterator[str]:
    """Yield the dotted paths of all keys below ``prefix`` in a schema."""
    for each in branches(schema, root):
        for name, item in each.get("properties", {}).items():
            yield f"{prefix}{name}"
            yield from _paths(item, root, f"{prefix}{name}.")


@lru_cache(maxsize=1024)
def _bare(key: str) -> str:
    return plain(key).replace("_", "")
