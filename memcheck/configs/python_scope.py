"""What a reading of Python code knows at a place: names, functions and classes of the file, and calls of libraries."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from memcheck.configs.python_code import CodeCell, PythonCode
from memcheck.configs.python_values import UNKNOWN, ImportedName, MadeObject, PythonValue, converted
from memcheck.plan.finding import Location
from memcheck.record import Record

if TYPE_CHECKING:
    from memcheck.configs.python_expressions import FollowedCode


class LocalFunction(Record):
    """A function of the file, and where its names are looked up."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    scope: LocalNames
    cell: CodeCell
    owner: MadeObject | None = None
    """The object whose method it is."""


class LocalClass(Record):
    """A class of the file."""

    node: ast.ClassDef
    scope: LocalNames
    cell: CodeCell
    bases: tuple[str, ...]
    """The names of all classes that it is made of."""


class LocalNames:
    """Names and their values, in a module or in a call."""

    def __init__(self, parent: LocalNames | None = None) -> None:
        self.names: dict[str, PythonValue] = {}
        self.parent = parent
        self.returned: list[PythonValue] = []
        self.ended = False

    def find(self, name: str) -> PythonValue | None:
        """The value of a name here or around here."""
        scope: LocalNames | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return None


class TooMuchError(Exception):
    """The file takes more steps than any script that a person wrote."""


class LibraryCall(Record):
    """A call of something that the file does not define."""

    node: ast.Call
    at: Location
    owner: PythonValue | None
    """Whose method is called; None for a function or a class."""
    path: str
    """The whole name of a function or class with its package; empty where that is not known."""
    name: str
    """The last part of the name."""
    arguments: list[PythonValue]
    keywords: dict[str, PythonValue]

    @property
    def held(self) -> Any:
        """What the method belongs to."""
        return None if self.owner is None else self.owner.of

    @property
    def class_name(self) -> str:
        """The part of the name before the last: ``AutoModel`` of ``transformers.AutoModel.from_pretrained``."""
        return self.path.rpartition(".")[0].rpartition(".")[2]

    @property
    def first(self) -> PythonValue | None:
        """The first argument without a name."""
        return self.arguments[0] if self.arguments else None

    @property
    def second(self) -> PythonValue | None:
        """The second argument without a name."""
        return self.arguments[1] if len(self.arguments) > 1 else None


class FilesAround(Protocol):
    """Other files that the code may name."""

    def module(self, name: str, level: int, of: str) -> PythonCode | None:
        """The code of a module, ``a/b`` for ``a.b``; None where it is no file near the file ``of``."""

    def document(self, name: str) -> dict[Any, PythonValue] | None:
        """The values of a YAML or JSON file; None where no such file can be read."""


Library = Callable[["FollowedCode", LibraryCall], "PythonValue | None"]
"""Gives what a call makes; None where nothing is known of it."""


def stated_value(text: str) -> object:
    """What the user states for a name: a number, a switch, None or a text."""
    words: dict[str, object] = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in ("int", "float"):
        found = converted(kind, text)
        if found is not UNKNOWN:
            return found
    return text


def named(node: ast.AST) -> str:
    """How a message calls an expression: the names in it, without its arguments."""
    parts: list[str] = []
    while len(parts) < 12:
        if isinstance(node, ast.Attribute):
            parts.append(f".{node.attr}")
            node = node.value
        elif isinstance(node, ast.Call):
            parts.append("()")
            node = node.func
        elif isinstance(node, ast.Subscript):
            parts.append("[]")
            node = node.value
        else:
            parts.append(node.id if isinstance(node, ast.Name) else "")
            break
    text = "".join(reversed(parts)).lstrip(".")
    return f"`{text[:60]}`" if text.strip("()[]") else "an expression"


def truth(value: PythonValue) -> bool:
    """Whether a known value counts as true."""
    return bool(value.of) if not isinstance(value.of, (MadeObject, ImportedName, LocalFunction, LocalClass)) else True
