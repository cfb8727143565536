"""The code of Python files and notebooks, as syntax trees with the lines of the file. Nothing is run or imported.

A notebook is read token by token: only the sources of code cells are decoded, and outputs are passed over. What IPython
alone understands, such as ``%pip`` and ``!ls``, is blanked, so that every line keeps its number.

What a reading of Python code knows at a place: names, functions and classes of the file, and calls of libraries.
"""

from __future__ import annotations

import ast
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from memcheck.configs.python_values import UNKNOWN, ImportedName, MadeObject, PythonValue, converted
from memcheck.plan.finding import Location, Span
from memcheck.record import Record

if TYPE_CHECKING:
    from memcheck.configs.python_expressions import FollowedCode


SUFFIXES = {".py": "Python", ".ipynb": "a Jupyter notebook, whose code is Python", ".pyw": "Python"}
MOST = 1 << 18
"""Characters of code that are parsed."""
DEEPEST = 90
"""Brackets inside each other: more is no code that a person wrote."""
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]', re.DOTALL)
_MAGIC = re.compile(r"[ \t]*(?:[!%?]|\w+\s*=\s*[!%]|[\w.]+\?{1,2}\s*$)")
_CELL_MAGIC = re.compile(r"%%(\w+)")
_OF_PYTHON = frozenset({"time", "timeit", "capture", "prun", "python", "python3"})
"""CodeCell magics after whose line the cell is Python."""


class CodeCell(Record):
    """One cell of a notebook, or a whole file."""

    tree: ast.Module | None
    """None for code that is no Python."""
    path: str
    """The file."""
    places: tuple[tuple[int, int, int], ...]
    """For each line of the code, counted from 1: the file's line, its first column, and the column after its end."""


class PythonCode(Record):
    """All code of a file."""

    path: str
    kind: str
    """What the file is called, such as ``Python``."""
    cells: tuple[CodeCell, ...]

    @property
    def broken(self) -> Iterator[Location]:
        """The starts of cells that are no Python."""
        for cell in self.cells:
            if cell.tree is None:
                row = cell.places[0][0] if cell.places else 1
                yield Location(self.path, Span(row, 1, row, 2))


def place(cell: CodeCell, node: ast.AST) -> Location:
    """The place of a node in its file: exact in a Python file, its line's in a notebook."""
    line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
    end = getattr(node, "end_col_offset", column + 1) if getattr(node, "end_lineno", line) == line else 0
    if not cell.places:
        return Location(cell.path, Span(line, column + 1, line, max(end, column + 1) + 1))
    row, first, last = cell.places[min(line, len(cell.places)) - 1]
    return Location(cell.path, Span(row, first, row, max(last, first + 1)))


def kind_of(path: str, text: str) -> str:
    """What a file is called whose text is Python; empty for every other file."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix in SUFFIXES:
        return SUFFIXES[suffix]
    first = text[:200].partition("\n")[0]
    if first.startswith("#!") and "python" in first:
        return "Python"
    notebook = suffix in ("", ".json") and '"cells"' in text[:200_000] and '"nbformat"' in text
    return SUFFIXES[".ipynb"] if notebook and text.lstrip()[:1] == "{" else ""


@lru_cache(maxsize=4)
def code_of(path: str, text: str) -> PythonCode:
    """The code of a Python file or a notebook. Never raises for bad input: what is no code has no tree."""
    kind = kind_of(path, text) or SUFFIXES[".py"]
    if text.lstrip()[:1] != "{":
        tree = parsed(text)
        return PythonCode(path, kind, (CodeCell(parsed(_plain(text)) if tree is None else tree, path, ()),))
    cells, size = [], 0
    for code, places in _cells(text):
        size += len(code)
        if size > MOST:
            break
        cells.append(CodeCell(parsed(_plain(code)), path, places))
    return PythonCode(path, kind, tuple(cells))


def parsed(code: str) -> ast.Module | None:
    """The tree of a module, which is not run; None for code that is too long, too deep or no Python."""
    if len(code) > MOST or _too_deep(code):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _unfolded(ast.parse(code)) if "marimo" in code else ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _unfolded(tree: ast.Module) -> ast.Module:
    """A notebook of marimo with the statements of its cells in their order: each cell is a function that returns names.

    Source: marimo 0.16 ``_ast/codegen.py``.
    """
    body: list[ast.stmt] = []
    for each in tree.body:
        cell = isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)) and any(
            isinstance(inner, ast.Attribute) and inner.attr == "cell"
            for decorator in each.decorator_list
            for inner in (decorator, getattr(decorator, "func", None))
        )
        if cell and isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
            body += [inner for inner in each.body if not isinstance(inner, ast.Return)]
        else:
            body.append(each)
    return ast.Module(body, tree.type_ignores)


def walked(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node, in the order of the text."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += reversed(list(ast.iter_child_nodes(node)))


def _too_deep(code: str) -> bool:
    """Whether code nests so far that Python's parser may run out of its stack. Text in quotes counts, too."""
    depth = 0
    for found in re.finditer(r"[(\[{]|[)\]}]", code):
        depth = depth + 1 if found[0] in "([{" else max(depth - 1, 0)
        if depth > DEEPEST:
            return True
    return any(line.count("(") > 2000 or len(line) - len(line.lstrip()) > 400 for line in code.split("\n"))


def _plain(code: str) -> str:
    """The code without what only IPython understands; lines keep their numbers."""
    lines = code.split("\n")
    first = next((number for number, line in enumerate(lines) if line.strip()), 0)
    named = _CELL_MAGIC.match(lines[first]) if lines else None
    written = named is not None and re.match(r"%%writefile\s+\S+\.py\s*$", lines[first]) is not None
    if named is not None and named[1] not in _OF_PYTHON and not written:
        return "\n" * (len(lines) - 1)
    plain, going_on, quoted, indent = [], False, False, ""
    for line in lines:
        indent = indent if going_on else line[: len(line) - len(line.lstrip())]
        magic = going_on or (not quoted and _MAGIC.match(line) is not None)
        going_on = magic and line.rstrip().endswith("\\")
        if not magic and (line.count('"""') + line.count("'''")) % 2:
            quoted = not quoted
        plain.append(f"{indent}pass" if magic and line.strip() else line)
    return "\n".join(plain)


def _cells(text: str) -> Iterator[tuple[str, tuple[tuple[int, int, int], ...]]]:
    """The sources of a notebook's code cells, with the place of every line in the file."""
    starts = [0, *(found.end() for found in re.finditer("\n", text))]
    row = 0
    path: list[str] = []
    """The keys around a token: ``[`` for a list."""
    key, kind = "", ""
    pieces: list[tuple[str, tuple[int, int, int]]] = []
    waiting = True
    """Whether the next text is a key."""
    for found in _TOKEN.finditer(text):
        token = found[0]
        if token in "{[":
            path.append(f"{token}{key}")
            key, waiting = "", token == "{"
            if len(path) > DEEPEST:
                return
            if token == "{" and len(path) == 3:
                kind, pieces = "", []
        elif token in "}]":
            if len(path) == 3 and token == "}" and path[1] == "[cells" and kind == "code" and pieces:
                yield "".join(each for each, _ in pieces), tuple(_lines(pieces))
            if path:
                path.pop()
            key, waiting = "", False
        elif token == ",":
            key, waiting = ("", True) if path and path[-1][0] == "{" else (key, False)
        elif token == ":":
            waiting = False
        elif waiting:
            key = token[1:-1] if len(token) < 40 else ""
        elif len(path) in (3, 4) and path[1] == "[cells":
            if len(path) == 3 and key == "cell_type":
                kind = token[1:-1]
            elif (key == "source" and len(path) == 3) or (len(path) == 4 and path[3] == "[source"):
                while row + 1 < len(starts) and starts[row + 1] <= found.start():
                    row += 1
                column = found.start() - starts[row] + 2
                pieces.append((_decoded(token), (row + 1, column, column + len(token) - 2)))


def _decoded(token: str) -> str:
    try:
        text = json.loads(token, strict=False)
    except ValueError:
        return ""
    return text if isinstance(text, str) else ""


def _lines(pieces: list[tuple[str, tuple[int, int, int]]]) -> Iterator[tuple[int, int, int]]:
    """The place of every line of the code: that of the text of JSON in which the line starts."""
    fresh = True
    for text, place in pieces:
        if fresh and text:
            yield place
        for _ in range(text.count("\n") - (1 if text.endswith("\n") else 0)):
            yield place
        fresh = text.endswith("\n") if text else fresh
    yield pieces[-1][1]


class LocalFunction(Record):
    """A function of the file, and where its names are looked up."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    scope: LocalNames
    cell: CodeCell
    owner: MadeObject | LocalClass | None = None
    """The object whose method it is, or the class of a class method."""


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


def decorated(function: LocalFunction) -> set[str]:
    """The last parts of the names of a function's decorators."""
    return {named(each).strip("`()").rpartition(".")[2] for each in getattr(function.node, "decorator_list", ())}


def truth(value: PythonValue) -> bool:
    """Whether a known value counts as true."""
    return bool(value.of) if not isinstance(value.of, (MadeObject, ImportedName, LocalFunction, LocalClass)) else True
