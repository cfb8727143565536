"""Text of a plan for places that read Markdown: nothing in it becomes a link, a mention, an emoji, an image or HTML."""

from __future__ import annotations

import re

NO_WIDTH = "\u200b"
_LINKS = re.compile(
    r"(?<=:)(?=//)|(?<=@)|(?<=#)(?=\w)|(?<=[Gg][Hh]-)(?=\d)|(?<=[Ww]{3})(?=\.)|(?<=\b[Mm]ailto)(?=:)|(?<=\bxmpp)(?=:)"
    r"|(?<=:)(?!(?!100:|1234:)\d{1,64}:)(?=[\w+-]{1,64}:)"
)
"""Where what GitHub would link or draw is broken: addresses, mentions, numbers of issues, emoji such as ``:100:``. It
does so after it has read entities, and cmark-gfm links addresses inside ``<code>``, too, because raw HTML tells it
nothing."""
_COMMIT = re.compile(r"\b(?=\d*[a-f])[0-9a-f]{7,40}\b")
"""GitHub links seven digits of a commit and more."""
_SIGNS = str.maketrans({char: f"\\u{ord(char):04x}" for char in "✅❌❎⚠✔✖✓✗✘☑⛔"})
_SIGNS.update({ord(char): f"\\U{ord(char):08x}" for char in "🟢🟡🟠🔴🚫🆗👍🚨"})
"""Signs that a reader takes for memcheck's own verdict."""
_MARKUP = re.compile(r"(?<=\])(?=[(\[:])|(?<=<)(?=[A-Za-z/!?])|(?<=&)(?=[#\w])|(?<=!)(?=\[)")
"""Where a link, a tag, an entity or an image is broken, where no entity may stand for its signs."""
_ENTITIES = {ord(char): f"&#{ord(char)};" for char in "*~"}
_EDGE = re.compile(r"(?<!\w)_|_(?!\w)")
"""An underscore that may begin or end what is emphasised; within a word none does."""


def broken(text: str, *, commits: bool = False) -> str:
    """A line with a character of no width where a link, a mention or an emoji would begin, and without verdict signs.

    ``commits``: what looks like a commit may become a link to it.
    """
    shown = _LINKS.sub(NO_WIDTH, text.translate(_SIGNS))
    if not commits:
        shown = _COMMIT.sub(lambda found: NO_WIDTH.join(re.findall(".{1,6}", found[0])), shown)
    return shown


def neutral(text: str) -> str:
    """A message for readers of which some show Markdown, and others plain text: both show it as it is meant.

    Code between single backticks stays code. Where backticks do not pair, they are written as entities.
    """
    shown = _MARKUP.sub(NO_WIDTH, broken(text))
    parts = shown.split("`")
    if len(parts) % 2 == 0 or "``" in shown:
        return _words("&#96;".join(parts))
    return "`".join(part if number % 2 else _words(part) for number, part in enumerate(parts))


def _words(text: str) -> str:
    return _EDGE.sub("&#95;", text.translate(_ENTITIES))
