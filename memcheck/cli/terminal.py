"""What the terminal at hand can show."""

from __future__ import annotations

import os
from collections.abc import Mapping

from memcheck.edge.screen import Screen
from memcheck.edge.text import whole_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

DEFAULT_WIDTH = 100


def screen_of(stream: TextIO, color: str = "auto", environment: Mapping[str, str] = os.environ) -> Screen:
    """The screen that a stream writes to. ``color`` is ``auto``, ``always`` or ``never``.

    With ``auto``: no colour if ``NO_COLOR`` is set, colour if ``FORCE_COLOR`` is, else colour on a terminal only.
    """
    return Screen(
        width_of(stream, environment),
        use_color(stream, color, environment),
        speaks_unicode(stream),
        links=use_links(stream, color, environment),
    )


def has_width(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether lines have to fit somewhere: not in a file or a pipe, unless ``COLUMNS`` says so."""
    return bool(environment.get("COLUMNS")) or stream.isatty()


def width_of(stream: TextIO, environment: Mapping[str, str]) -> int:
    """``COLUMNS`` if set, else the terminal's width, else 100."""
    stated = whole_number(environment.get("COLUMNS", ""))
    if stated:
        return stated
    try:
        return os.get_terminal_size(stream.fileno()).columns or DEFAULT_WIDTH
    except (OSError, ValueError, AttributeError):
        return DEFAULT_WIDTH


def use_color(stream: TextIO, color: str, environment: Mapping[str, str]) -> bool:
    """Whether to send colours."""
    if color != "auto":
        return color == "always"
    if environment.get("NO_COLOR"):
        return False
    if environment.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return is_terminal(stream) and environment.get("TERM") != "dumb"


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at the stream."""
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def use_links(stream: TextIO, color: str, environment: Mapping[str, str]) -> bool:
    """Whether to send hyperlinks: to terminals known to understand them, or as ``FORCE_HYPERLINK`` says."""
    forced = environment.get("FORCE_HYPERLINK", "")
    if color == "never" or forced:
        return color != "never" and forced != "0"
    if not is_terminal(stream):
        return False
    from memcheck.cli.hyperlinks import understood

    return understood(environment)


def speaks_unicode(stream: TextIO) -> bool:
    """Whether bars can be drawn with block characters."""
    return (getattr(stream, "encoding", None) or "").lower().replace("-", "").replace("_", "") in ("utf8", "utf8sig")
