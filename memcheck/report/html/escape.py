"""User text in HTML: never markup, never a control character."""

from __future__ import annotations

from html import escape

from memcheck.edge.text import clean


def text(words: str) -> str:
    """Text for element content and quoted attributes."""
    return escape(clean(words).encode("utf-8", "replace").decode("utf-8"))


def code(words: str) -> str:
    """Text as inline code, which may go on in the next line behind a dot or an underscore."""
    return f"<code>{text(words).replace('.', '.<wbr>').replace('_', '_<wbr>')}</code>"


def attributes(**named: str | int) -> str:
    """`` name="value"`` for each; underscores become hyphens, and a trailing one keeps Python's keywords apart."""
    return "".join(f' {name.rstrip("_").replace("_", "-")}="{text(str(value))}"' for name, value in named.items())
