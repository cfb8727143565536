"""A rule's page, written in Markdown, where only text can be shown."""

from __future__ import annotations

import re

from memcheck.edge.screen import Screen
from memcheck.edge.text import width, wrap

CODE_SPAN = re.compile(r"`([^`]+)`")
OWN_LINE = re.compile(r"\s*(?:[-*]|\d+\.|\|)\s")
"""List items and table rows start a line of their own."""


def styled(page: str, screen: Screen) -> str:
    """Markdown for a terminal: headings bold, code coloured, paragraphs filled to the screen's width."""
    lines: list[str] = []
    paragraph: list[str] = []

    def flush() -> None:
        if paragraph:
            marker = OWN_LINE.match(paragraph[0])
            indent = " " * len(marker[0]) if marker else ""
            whole = " ".join([paragraph[0], *(text.strip() for text in paragraph[1:])])
            parts = wrap(whole, screen.columns - len(indent), -len(indent))
            lines.extend(inline(text, screen) for text in [parts[0], *(indent + part for part in parts[1:])])
            paragraph.clear()

    for line in page.splitlines():
        if line.startswith(("#", "    ")) or not line.strip() or OWN_LINE.match(line):
            flush()
        if line.startswith("#"):
            lines.append(screen.paint(line.lstrip("# "), "strong"))
        elif line.startswith("    "):
            lines.extend(screen.paint(part, "gutter") for part in example(line, screen.columns))
        elif line.strip():
            paragraph.append(line)
        else:
            lines.append("")
    flush()
    return "\n".join(lines) + "\n"


def example(line: str, columns: int) -> list[str]:
    """A line of an example, which is never broken. A comment after it that does not fit is put above it."""
    code, mark, comment = line.partition("   # ")
    if not mark or width(line) <= columns:
        return [line]
    indent = code[: len(code) - len(code.lstrip())]
    return [*(f"{indent}# {part}" for part in wrap(comment, columns - len(indent) - 2)), code.rstrip()]


def inline(text: str, screen: Screen) -> str:
    """Code spans in colour, or in their backticks where there is none."""
    return CODE_SPAN.sub(lambda span: screen.paint(span[1], "gutter"), text) if screen.color else text


def section(doc: str, title: str) -> str:
    """The text under one heading, as a single paragraph; empty if there is none."""
    _, _, rest = doc.partition(f"\n## {title}\n")
    return " ".join(rest.partition("\n## ")[0].split())
