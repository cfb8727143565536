"""What the terminal can show."""

from __future__ import annotations

import io

import pytest

from memcheck.cli.write import screen_of, use_color
from memcheck.edge.screen import STYLES


class Stream(io.StringIO):
    """A stream that says whether it is a terminal."""

    def __init__(self, terminal: bool, encoding: str = "utf-8") -> None:
        super().__init__()
        self.terminal = terminal
        self.name_of_encoding = encoding

    def isatty(self) -> bool:
        return self.terminal

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.name_of_encoding


@pytest.mark.parametrize(
    ("terminal", "option", "environment", "expected"),
    [
        (True, "auto", {}, True),
        (False, "auto", {}, False),
        (True, "auto", {"TERM": "dumb"}, False),
        (True, "auto", {"NO_COLOR": "1"}, False),
        (True, "auto", {"NO_COLOR": ""}, True),
        (False, "auto", {"FORCE_COLOR": "1"}, True),
        (False, "auto", {"FORCE_COLOR": "0"}, False),
        (False, "auto", {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        (False, "always", {"NO_COLOR": "1"}, True),
        (True, "never", {"FORCE_COLOR": "1"}, False),
    ],
)
def test_colour_is_for_terminals_and_wishes(
    terminal: bool, option: str, environment: dict[str, str], expected: bool
) -> None:
    """The option goes before NO_COLOR, that before FORCE_COLOR, that before what the stream is."""
    assert use_color(Stream(terminal), option, environment) is expected


@pytest.mark.parametrize(("columns", "width"), [("72", 72), ("", 100), ("0", 100), ("wide", 100)])
def test_width_is_columns_or_a_hundred(columns: str, width: int) -> None:
    """Without a terminal, ``COLUMNS`` decides; nonsense in it does not."""
    assert screen_of(Stream(False), "auto", {"COLUMNS": columns}).width == width


@pytest.mark.parametrize(
    ("encoding", "unicode"), [("utf-8", True), ("UTF8", True), ("ascii", False), ("latin-1", False)]
)
def test_blocks_need_utf8(encoding: str, unicode: bool) -> None:
    """Other encodings get ASCII bars."""
    assert screen_of(Stream(False, encoding), "auto", {}).unicode is unicode


def test_colours_are_legible_on_any_background() -> None:
    """No white, black, yellow or bright colour, no background, and bold only where the bright variant can be read."""
    for name, style in STYLES.items():
        parts = style.split(";")
        colours = [int(part) for part in parts if int(part) >= 30]
        assert set(colours) <= {31, 32, 35, 36}, name
        assert "1" not in parts or set(colours) <= {31, 35}, name
