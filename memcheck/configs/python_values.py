"""What an expression of a Python file gives, as far as it can be told without running it; and where it is written."""

from __future__ import annotations

import ast
import math
import posixpath
import re
from collections.abc import Callable
from typing import Any

from memcheck.plan.finding import Location
from memcheck.record import Record

LIBRARIES = frozenset(
    {"torch", "transformers", "trl", "peft", "unsloth", "bitsandbytes", "accelerate", "datasets", "numpy", "evaluate"}
)
"""Packages whose names are values, such as ``torch.bfloat16``."""
UNSET = "of the environment"
"""How the reason ends for a variable of the environment that has no default."""
UNKNOWN = object()
"""In place of a value that only running the file would give."""
LONGEST = 10_000
"""Characters of a text, and elements of a list."""
LARGEST = 10**18
"""The largest whole number."""


class PythonValue(Record):
    """What an expression gives."""

    of: Any
    """A constant, a list or a mapping of values, a :class:`Thing`, a :class:`Dotted` name, or :data:`UNKNOWN`."""
    at: Location
    """Where it is written: of a name, where its value is."""
    option: str = ""
    """The option of a command line whose default it is."""
    why: str = ""
    """What an unknown value hangs on."""
    by_gpu: bool = False
    """Whether it follows from the GPU, or would, if the GPU were stated."""

    @property
    def known(self) -> bool:
        """Whether the value could be told."""
        return self.of is not UNKNOWN and (not isinstance(self.of, ImportedName) or self.of.of_library)


class ImportedName(Record):
    """A name of an imported module or of what is in it, such as ``torch.bfloat16``."""

    path: str

    @property
    def of_library(self) -> bool:
        """Whether it is a name of a library whose names count as words, such as a dtype."""
        return self.path.partition(".")[0] in LIBRARIES

    @property
    def last(self) -> str:
        """The last part of the name."""
        return self.path.rpartition(".")[2]


class MadeObject:
    """What a call of a class or of a library's function makes: the name of what was called and its arguments."""

    def __init__(self, name: str, arguments: list[PythonValue], keywords: dict[str, PythonValue], at: Location) -> None:
        self.name = name
        self.arguments = arguments
        self.keywords = keywords
        """Keyword arguments, and attributes that were set later."""
        self.at = at
        self.path = ""
        """The whole name of what was called, with its package; empty where it is not known."""
        self.kind: object = None
        """The class of the file that it is an object of."""
        self.open = ""
        """The command line that may set each of its fields; empty: none does."""
        self.depth = 0
        """How many conditions, not decided, are around the call that makes it."""

    def joined_with(self, other: MadeObject, unknown: PythonValue, depth: int) -> MadeObject | None:
        """The object of which nobody knows whether it is this one or ``other``; None for objects of other classes."""
        if self.name != other.name or self.kind is not other.kind or len(self.arguments) != len(other.arguments):
            return None
        if len(self.keywords) + len(other.keywords) > MOST_JOINED:
            return None
        pairs = zip(self.arguments, other.arguments, strict=True)
        arguments = [joined(one, another, unknown, depth + 1) for one, another in pairs]
        keywords = _joined_mappings(self.keywords, other.keywords, unknown, depth)
        found = type(self)(other.name, arguments, keywords, other.at)
        found.path, found.kind, found.open = other.path, other.kind, self.open or other.open
        found.depth = max(0, min(self.depth, other.depth) - 1)
        return found

    def get(self, name: str) -> PythonValue | None:
        """A keyword argument or attribute; None where the file says nothing of it."""
        return self.keywords.get(name)

    def argument(self, place: int, *names: str) -> PythonValue | None:
        """An argument by its place or by one of its names."""
        found = next((self.keywords[name] for name in names if name in self.keywords), None)
        return found if found is not None or place >= len(self.arguments) else self.arguments[place]


DEEPEST_VALUE = 30
"""Lists and mappings inside each other."""


def parts(value: object) -> int:
    """How many values are in a list or a mapping, each as often as it is reached; more than LONGEST for too many.

    A list may hold itself, and a short one that holds another twice, and so on, has more values than any memory.
    """
    count, level = 0, [value]
    for _ in range(DEEPEST_VALUE):
        below: list[object] = []
        for each in level:
            held = each if isinstance(each, list) else list(each.values()) if isinstance(each, dict) else []
            count += len(held)
            if count > LONGEST:
                return count
            below += [inner.of for inner in held]
        if not below:
            return count
        level = below
    return LONGEST + 1


def plain(value: PythonValue | None) -> object:
    """The value as a constant: names of libraries by their last part; None for what is not known, said or too large."""
    if value is None or not value.known or parts(value.of) > LONGEST:
        return None
    return _plain(value)


def _plain(value: PythonValue) -> object:
    """A value that is not too large as a constant."""
    if not value.known:
        return None
    found = value.of
    if isinstance(found, ImportedName):
        return found.last
    if isinstance(found, list):
        return [_plain(each) for each in found]
    if isinstance(found, dict):
        return {key: _plain(each) for key, each in found.items()}
    return found if isinstance(found, (str, int, float, bool)) else None


def placed(value: object, at: Location) -> PythonValue:
    """A plain value of a file, with all that is in it, at one place."""
    if isinstance(value, dict):
        return PythonValue({key: placed(each, at) for key, each in value.items()}, at)
    return PythonValue([placed(each, at) for each in value] if isinstance(value, list) else value, at)


def is_whole(value: PythonValue) -> bool:
    """Whether a value and all that is in it are known, and not too many."""
    return parts(value.of) <= LONGEST and _is_whole(value)


def _is_whole(value: PythonValue) -> bool:
    """Whether a value that is not too large is known, with all that is in it."""
    if isinstance(value.of, (list, dict)):
        return all(map(_is_whole, value.of.values() if isinstance(value.of, dict) else value.of))
    return value.known


def equal(one: PythonValue, other: PythonValue) -> bool:
    """Whether two values are the same constant or the same object."""
    if not (is_whole(one) and is_whole(other)):
        return False
    if isinstance(one.of, MadeObject) or isinstance(other.of, MadeObject):
        return one.of is other.of
    return type(one.of) is type(other.of) and plain(one) == plain(other)


MOST_JOINED = 200
"""Parts of a list or a mapping that are compared one by one."""


_HUB_NAME = re.compile(r"([A-Za-z0-9][\w.-]*)/([A-Za-z0-9][\w.-]*)\Z")
"""A model of the Hub: its owner and its name."""
_CACHED = ("{1}", "{0}__{1}", "{0}_{1}", "{0}--{1}", "models--{0}--{1}")
"""How folders are called that hold a copy of it, the last by huggingface_hub (``file_download.py``)."""


def _is_copy(path: str, name: str) -> bool:
    """Whether a path is that of a folder which is called as the model ``name`` of the Hub, of which it holds a copy."""
    found = _HUB_NAME.match(name)
    return found is not None and posixpath.basename(path.rstrip("/")) in [
        each.format(*found.groups()) for each in _CACHED
    ]


def joined(one: PythonValue, other: PythonValue, unknown: PythonValue, depth: int = 0) -> PythonValue:
    """The value of which nobody knows whether it is ``one`` or ``other``: what both say alike is known.

    ``unknown``: what stands for the rest, with the reason.
    """
    if one is other or equal(one, other):
        return other
    first, second = one.of, other.of
    if isinstance(first, str) and isinstance(second, str):
        model = other if _is_copy(first, second) else one if _is_copy(second, first) else None
        return unknown if model is None else model._replace(option=one.option or other.option)
    if depth > 4 or type(first) is not type(second) or (depth == 0 and parts(first) + parts(second) > LONGEST):
        return unknown
    if isinstance(first, MadeObject):
        found = first.joined_with(second, unknown, depth)
        return unknown if found is None else other._replace(of=found)
    if isinstance(first, dict) and len(first) + len(second) <= MOST_JOINED:
        return other._replace(of=_joined_mappings(first, second, unknown, depth))
    if isinstance(first, list) and len(first) == len(second) <= MOST_JOINED:
        pairs = zip(first, second, strict=True)
        return other._replace(of=[joined(each, more, unknown, depth + 1) for each, more in pairs])
    return unknown


def _joined_mappings(
    one: dict[Any, PythonValue], other: dict[Any, PythonValue], unknown: PythonValue, depth: int
) -> dict[Any, PythonValue]:
    """The values of two mappings by key; what only one of them has is unknown."""
    return {
        key: joined(one[key], other[key], unknown, depth + 1) if key in one and key in other else unknown
        for key in {**one, **other}
    }


def _arithmetic(one: Any, other: Any, operator: type[ast.operator]) -> object:
    if isinstance(one, str) and isinstance(other, str) and operator in (ast.Add, ast.Div):
        return one + other if operator is ast.Add else posixpath.join(one, other) if one != "." else other  # of a Path
    if isinstance(one, list) and isinstance(other, list) and operator is ast.Add:
        return one + other
    if isinstance(one, dict) and isinstance(other, dict) and operator is ast.BitOr:
        return {**one, **other}
    if not (isinstance(one, (int, float)) and isinstance(other, (int, float))):
        return UNKNOWN
    if operator is ast.Pow:
        return one**other if abs(one) <= 10**6 and 0 <= other <= 30 else UNKNOWN
    if operator is ast.LShift:
        return one << other if isinstance(one, int) and isinstance(other, int) and 0 <= other < 60 else UNKNOWN
    known = _OPERATORS.get(operator)
    return UNKNOWN if known is None else known(one, other)


_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], object]] = {
    ast.Add: lambda one, other: one + other,
    ast.Sub: lambda one, other: one - other,
    ast.Mult: lambda one, other: one * other,
    ast.Div: lambda one, other: one / other,
    ast.FloorDiv: lambda one, other: one // other,
    ast.Mod: lambda one, other: one % other,
}


def combined(one: object, other: object, operator: ast.operator) -> object:
    """``one operator other`` of numbers, texts, lists and mappings; unknown where it fails or grows too large."""
    try:
        found = _arithmetic(one, other, type(operator))
    except (ArithmeticError, TypeError, ValueError):
        return UNKNOWN
    return bounded(found)


def parent_of(path: str) -> str:
    """The folder of a path, of which a relative one counts from where the script lies."""
    return posixpath.normpath(posixpath.join(path, ".."))


def bounded(found: object) -> object:
    """The value, or unknown where it is larger than any setting."""
    if isinstance(found, (str, list, dict)):
        return found if len(found) <= LONGEST else UNKNOWN
    if isinstance(found, float):
        return found if math.isfinite(found) else UNKNOWN
    if isinstance(found, int):
        return found if abs(found) <= LARGEST else UNKNOWN
    return found


def compared(one: Any, other: Any, operator: ast.cmpop) -> object:
    """``one operator other`` as True or False; unknown for values that have no such order."""
    if isinstance(operator, (ast.Is, ast.Eq)):
        return bool(one == other and (type(one) is type(other) or not isinstance(operator, ast.Is)))
    if isinstance(operator, (ast.IsNot, ast.NotEq)):
        return not compared(one, other, ast.Is() if isinstance(operator, ast.IsNot) else ast.Eq())
    try:
        if isinstance(operator, (ast.In, ast.NotIn)):
            found = one in other
            return found if isinstance(operator, ast.In) else not found
        if isinstance(operator, ast.Lt):
            return bool(one < other)
        if isinstance(operator, ast.LtE):
            return bool(one <= other)
        return bool(one > other) if isinstance(operator, ast.Gt) else bool(one >= other)
    except TypeError:
        return UNKNOWN


def converted(name: str, value: object) -> object:
    """``int(value)`` and its kin, of one constant; unknown where it fails."""
    try:
        if name in ("bool", "len"):
            sized = isinstance(value, (str, list, dict))
            return bool(value) if name == "bool" else len(value) if sized else UNKNOWN  # type: ignore[arg-type]
        if isinstance(value, str) and len(value) < 40 and name in ("int", "float"):
            return bounded(int(value) if name == "int" else float(value))
        if isinstance(value, (int, float)) and name in _NUMERIC:
            return bounded(_NUMERIC[name](value))
        if name == "str" and isinstance(value, (int, float, str)):
            return bounded(str(value))
    except (ValueError, OverflowError):
        return UNKNOWN
    return UNKNOWN


_NUMERIC: dict[str, Callable[[Any], object]] = {"int": int, "float": float, "round": round, "abs": abs}
