"""HTML as a type of its own: what is no ``Html`` cannot become part of a page, and plain text becomes it by escaping.

``Html`` is made in this file alone. A literal, an f-string or a sum of texts is a ``str``, which the type checker
refuses wherever markup is joined.

A page around any body: one file that loads nothing, runs nothing, and reads well on paper and on a phone.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable
from functools import lru_cache
from html import escape
from typing import NewType

from memcheck.accounts.estimate import CACHE
from memcheck.edge.screen import clean
from memcheck.record import Record

Html = NewType("Html", str)
"""Markup: complete elements and escaped text."""

NOTHING = Html("")


SHORT = 64
"""Characters of texts that are escaped once: names, figures and places come again and again."""


def text(words: str) -> Html:
    """Plain text as content or as a quoted attribute: never markup, never a control character."""
    return _known(words) if len(words) <= SHORT else _escaped(words)


def _escaped(words: str) -> Html:
    return Html(escape(clean(words).encode("utf-8", "replace").decode("utf-8")))


_known = lru_cache(maxsize=8192)(_escaped)


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
            found += f" {_hyphened(name)}{shown}"
    return Html(found)


@lru_cache(maxsize=256)
def _hyphened(name: str) -> str:
    """The name of an attribute as HTML has it."""
    return name.rstrip("_").replace("_", "-")


def tag(name: str, *inside: Html, **named: Value) -> Html:
    """An element with its attributes around what is inside."""
    return Html(f"<{name}{attributes(**named)}>{''.join(inside)}</{name}>")


def shape(name: str, **named: Value) -> Html:
    """An element of SVG with nothing inside."""
    return Html(f"<{name}{attributes(**named)}/>")


def joined(parts: Iterable[Html], between: str = "") -> Html:
    """Elements after each other; ``between`` them is text."""
    return Html(text(between).join(parts))


def page(
    title: str,
    body: Html,
    *,
    version: str,
    styles: str = "",
    basis: str = "Predicted by memcheck {} from plans alone: no GPU, no run.",
) -> str:
    """A complete document.

    ``title`` is plain text, ``body`` is HTML that stands inside ``<main>`` and begins with its ``<h1>``, ``styles`` is
    CSS in addition to that of every page, ``basis`` is
    what the footer says the answers rest on, with ``{}`` for the version. The security policy allows this style sheet
    alone: markup that slipped through could neither run nor load. Nor does a ``style`` attribute work: bars and cells
    are SVG, coloured by class.
    """
    sheet = stylesheet() + base_styles() + styles
    digest = base64.b64encode(hashlib.sha256(sheet.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return (
        "<!DOCTYPE html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="generator" content="memcheck {text(version)}">\n'
        f"<title>{text(title)}</title>\n<style>{sheet}</style>\n</head>\n<body>\n"
        f'<main>\n{body}\n</main>\n<footer class="foot"><p>{text(basis.format(version))} '
        "1 GiB is 2<sup>30</sup> bytes.</p></footer>\n</body>\n</html>\n"
    )


def base_styles() -> str:
    """The style sheet of every page, without the line breaks and indents of its source."""
    with open(os.path.join(os.path.dirname(__file__), "style.css"), encoding="utf-8") as file:
        return "\n".join(line.strip() for line in file if line.strip()) + "\n"


class Colour(Record):
    """One role, on a light and on a dark screen."""

    light: str
    dark: str


BACKGROUNDS = {
    "page": Colour("#f6f7f9", "#0f1216"),
    "card": Colour("#ffffff", "#181c22"),
    "inset": Colour("#f0f2f5", "#20252d"),
}
"""What text and bars stand on."""

TEXT = {
    "ink": Colour("#16191d", "#eceff3"),
    "soft": Colour("#4d5661", "#b3bcc8"),
    "link": Colour("#1d4ed8", "#93b7ff"),
    "good": Colour("#116a35", "#5fd08a"),
    "warn": Colour("#8a4b00", "#f5b942"),
    "bad": Colour("#b3191f", "#ff8f8a"),
    "note": Colour("#0b5f8a", "#6cc4ef"),
}
"""Colours of text: words, figures and verdicts."""

BARS = {
    "parameters": Colour("#1e3a8a", "#7fa6ff"),
    "gradients": Colour("#2f6fde", "#5b8df5"),
    "master_weights": Colour("#0e6f96", "#4fc3e8"),
    "optimizer_states": Colour("#5546c9", "#aea4ff"),
    "activations": Colour("#c2470d", "#ff9d5c"),
    "logits_and_loss": Colour("#8f3d10", "#ffc861"),
    "communication_buffers": Colour("#0f766e", "#3fcfbd"),
    "temporaries": Colour("#4a7212", "#a9dc4f"),
    "kv_cache": Colour("#86248f", "#dc8df0"),
    "adapters": Colour("#be1a5d", "#ff8fbd"),
    "context_and_nccl": Colour("#4b5563", "#9aa5b4"),
    "fragmentation": Colour("#6a7280", "#c6cdd7"),
    "cache": Colour("#717780", "#8b939f"),
}
"""One per component of memory: state in blue, what a batch needs in orange, what a machine needs in grey."""

CACHE_OPACITY = 0.45
"""The cache is a tail of what is needed: there, and of less weight."""

LINES = {"rule": Colour("#d9dde3", "#333a45"), "track": Colour("#e3e7ec", "#2b313b")}
"""Decoration, which carries no meaning of its own."""


def variables(shade: str) -> str:
    """CSS custom properties of one shade: ``light`` or ``dark``."""
    roles = {**BACKGROUNDS, **TEXT, **BARS, **LINES}
    return "".join(f"--{name.replace('_', '-')}:{getattr(colour, shade)};" for name, colour in roles.items())


def stylesheet() -> str:
    """The palette as CSS: light, dark where the reader's system is, and a class per bar colour."""
    bars = "".join(f".c-{css(name)}{{fill:var(--{css(name)})}}" for name in (*BARS, "good", "warn", "bad", "note"))
    bars += f".c-{CACHE}{{fill-opacity:{CACHE_OPACITY}}}"
    return (
        f":root{{color-scheme:light dark;{variables('light')}}}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{variables('dark')}}}}}\n{bars}\n"
    )


def css(name: str) -> str:
    """A component's or a tone's name as part of a class."""
    return name.replace("_", "-")
