"""The code of Python files and notebooks, as syntax trees with the lines of the file. Nothing is run or imported.

A notebook is read token by token: only the sources of code cells are decoded, and outputs are passed over. What IPython
alone understands, such as ``%pip`` and ``!ls``, is blanked, so that every line keeps its number.
"""

from __future__ import annotations

import ast
import json
import os
import re
import warnings
from collections.abc import Iterator
from functools import lru_cache

from memcheck.plan.finding import Location, Span
from memcheck.record import Record

SUFFIXES = {".py": "Python", ".ipynb": "a Jupyter notebook, whose code is Python", ".pyw": "Python"}
MOST = 1 << 18
"""Characters of code that are parsed."""
DEEPEST = 90
"""Brackets inside each other: more is no code that a person wrote."""
_TOKEN = re.compile(r'"(?:[^"\\]+|\\.)*"|[{}\[\],:]', re.DOTALL)
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
