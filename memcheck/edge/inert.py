"""Finished text as it may reach a terminal or a CI log: nothing in it is an escape or a command.

Runners read commands from what a step prints. GitHub's takes a line that starts with ``::``, blanks before it or not,
and ``##[`` wherever it stands (``ActionCommand.TryParseV2`` and ``TryParse`` in actions/runner); Azure's takes
``##vso[`` and TeamCity's ``##teamcity[``.
"""

from __future__ import annotations

from memcheck.edge.screen import MADE
from memcheck.edge.text import clean

_ESCAPE = "(\x1b\\[[0-9;]*m|\x1b]8;;[^\x1b\n]*\x1b\\\\)"
"""The two kinds of escapes that memcheck makes: colours and hyperlinks.

Patterns are compiled where they are needed: few reports have anything to see to."""
_FIRST = "(?m)^((?:[^\\S\n]|\x1b\\[[0-9;]*m|\x1b]8;;[^\x1b\n]*\x1b\\\\)*):(?=:(?!: ))"
"""The colon that makes a line a command. ``::: `` is memcheck's own arrow, and the name of no command."""
_BREAK = "\u200b"
"""What Markdown's text has where a link would begin: a space of no width, which moves nothing and ends no line."""
_ANYWHERE = r"#(?=#[A-Za-z]*\[)"


def inert(text: str, *, commands: bool = False) -> str:
    """Text whose control characters, direction marks and commands can be seen and do nothing.

    Escapes that :class:`~memcheck.edge.screen.Screen` has made pass; all others become visible. With ``commands``
    the text has workflow commands of memcheck's own, and its author has made the rest of it inert.
    """
    if "\x1b" not in text:
        text = _cleaned(text)
    else:
        import re

        text = "".join(part if part in MADE else _cleaned(part) for part in re.split(_ESCAPE, text))
    return text if commands else without_commands(text)


def without_commands(text: str) -> str:
    """Text in which no runner finds a command: the character that makes one is written as its code."""
    if "::" in text:
        import re

        text = re.sub(_FIRST, r"\1\\x3a", text)
    if "##" in text:
        import re

        text = re.sub(_ANYWHERE, r"\\x23", text)
    return text


def _cleaned(text: str) -> str:
    if text.replace("\n", "").isprintable():
        return text
    return _BREAK.join(map(clean, text.split(_BREAK)))
