"""HTML as a type of its own: what is no ``Html`` cannot become part of a page, and plain text becomes it by escaping.

``Html`` is made in this file alone. A literal, an f-string or a sum of texts is a ``str``, which the type checker
refuses wherever markup is joined.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import NewType

from memcheck.edge.text import clean

Html = NewType("Html", str)
"""Markup: complete elements and escaped text."""

NOTHING = Html("")


def text(words: str) -> Html:
    """Plain text as content or as a quoted attribute: never markup, never a control character."""
    return Html(escape(clean(words).encode("utf-8", "replace").decode("utf-8")))


def breakable(words: str) -> Html:
    """A name as HTML that may break into the next line after a dot, an underscore or a slash."""
    shown = str(text(words))
    for sign in "._/":
        shown = shown.replace(sign, f"{sign}<wbr>")
    return Html(shown)


def code(words: str) -> Html:
    """Text as inline code that may break into the next line after a dot or an underscore."""
    return Html(f"<code>{text(words).replace('.', '.<wbr>').replace('_', '_<wbr>')}</code>")


Value = str | int | None
"""An attribute's value: None and False leave it out, True names it alone."""


def attributes(**named: Value) -> Html:
    """`` name="value"`` for each; underscores become hyphens, and a trailing one keeps Python's keywords apart."""
    found = ""
    for name, value in named.items():
        if value is not None and value is not False:
            shown = "" if value is True else f'="{text(str(value))}"'
            found += f" {name.rstrip('_').replace('_', '-')}{shown}"
    return Html(found)


def tag(name: str, *inside: Html, **named: Value) -> Html:
    """An element with its attributes around what is inside."""
    return Html(f"<{name}{attributes(**named)}>{''.join(inside)}</{name}>")


def shape(name: str, **named: Value) -> Html:
    """An element of SVG with nothing inside."""
    return Html(f"<{name}{attributes(**named)}/>")


def joined(parts: Iterable[Html], between: str = "") -> Html:
    """Elements after each other; ``between`` them is text."""
    return Html(text(between).join(parts))
