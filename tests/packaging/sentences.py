"""Sentences of Markdown, of help and of messages, with the line each begins on, and how many words each has."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LONGEST = 30
"""Words of the longest sentence that a reader is given."""

END = re.compile(r"(?<=[.!?])[\")*_]*\s+(?=[A-Z0-9`\"'(*_\[\x00-]|[a-z][\w-]*(?:,? [\w-]+){0,3}: )|(?<=[.!?])$|\n+")
"""Where a sentence ends: at its stop before a new beginning, and at the end of a paragraph, an item or a cell."""
SHORT = re.compile(r"\b(e\.g|i\.e|vs|etc|cf|no|approx)\.", re.IGNORECASE)
CODE = re.compile(r"``[^`]*``|`[^`]*`")
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
FENCE = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"^(?:    |\t).*$", re.MULTILINE)
NEW = re.compile(r"^\s*(?:[-*+]|\d+\.|#+|>)\s")
"""What begins an item, a heading or a quotation."""


class Sentence(NamedTuple):
    """A sentence, and the line of its file that it begins on."""

    line: int
    text: str

    @property
    def words(self) -> int:
        """A span of code, a number and a value that is put in are a word each; a sign of arithmetic is none."""
        return len(re.findall(r"\S*[\w\x00]\S*", CODE.sub("code", self.text)))


def blank(found: re.Match[str]) -> str:
    """Nothing but the line breaks."""
    return "\n" * found[0].count("\n")


def in_markdown(text: str, first: int = 1) -> Iterator[Sentence]:
    """Sentences of a page without its code and its generated comments; each cell of a table is a paragraph."""
    text = BLOCK.sub("", FENCE.sub(blank, COMMENT.sub(blank, text)))
    paragraph: list[str] = []
    begin = first
    for number, line in enumerate([*text.split("\n"), ""], first):
        if line.lstrip().startswith("|"):
            for cell in re.split(r"(?<!\\)\|", line):
                yield from in_paragraph(cell, number)
        elif paragraph and (not line.strip() or NEW.match(line)):
            yield from in_paragraph("\n".join(paragraph), begin)
            paragraph, begin = [line] if line.strip() else [], number
        elif line.strip():
            begin = begin if paragraph else number
            paragraph.append(line)


def in_paragraph(text: str, line: int) -> Iterator[Sentence]:
    """Sentences of one paragraph, which begins on a line."""
    flat = LINK.sub(r"\1", SHORT.sub(r"\1", text))
    spans = CODE.findall(flat)
    flat = CODE.sub("`", flat)
    start = 0
    for end in [*re.finditer(END.pattern.replace(r"|\n+", ""), flat), None]:
        part = flat[start : end.start() if end else len(flat)]
        count = part.count("`")
        said = part
        for span in spans[:count]:
            said = said.replace("`", span.replace("`", "\x01"), 1)
        spans = spans[count:]
        if said.strip():
            yield Sentence(line + flat[:start].count("\n"), " ".join(said.replace("\x01", "`").split()))
        start = end.end() if end else start


def in_module(path: Path) -> Iterator[Sentence]:
    """Sentences of a module's texts, and of the docstrings that users read. A value that is put in is a NUL."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    documented = [tree, *(node for node in nodes if isinstance(node, (ast.ClassDef, ast.FunctionDef)))]
    bare = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    left_out = bare | {id(each) for node in nodes if isinstance(node, ast.JoinedStr) for each in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr) and id(node) not in bare:
            parts = [str(each.value) if isinstance(each, ast.Constant) else "\x00" for each in node.values]
            yield from in_message("".join(parts), node.lineno)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out:
            yield from in_message(node.value, node.lineno)
    for node in documented:
        if shown(path, node) and (text := ast.get_docstring(node)):
            line = 1 if isinstance(node, ast.Module) else node.lineno + 1
            yield from in_markdown(text.replace("\b", ""), line)


def shown(path: Path, node: ast.AST) -> bool:
    """Whether people read a docstring: of a rule, and of a command."""
    if isinstance(node, ast.Module):
        return path.parent.name == "rules" and path.name.startswith("mem")
    decorators = getattr(node, "decorator_list", ())
    return path.parent.name == "cli" and any("command" in ast.unparse(each) for each in decorators)


def in_message(text: str, line: int) -> Iterator[Sentence]:
    """Sentences of a message. A line break ends one."""
    for part in text.split("\n"):
        yield from in_paragraph(part, line)


def in_schema(path: Path) -> Iterator[Sentence]:
    """Sentences of the descriptions of a schema."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        if found := re.match(r'\s*"(?:description|x-[\w-]+|title)": ("(?:[^"\\]|\\.)*")', line):
            yield from in_message(json.loads(found[1]), number)
