"""Messages on stderr: broken between words on a terminal, whole lines elsewhere."""

from __future__ import annotations

import sys

import pytest

from memcheck.cli.write import complain, filled
from memcheck.edge.screen import width
from tests.cli.test_terminal import Stream

LONG = "the config does not say which GPU it runs on, and nothing beside it does, so that it has to be asked for"


@pytest.mark.parametrize("columns", [20, 40, 80])
def test_no_line_is_wider_and_none_breaks_a_word(columns: int) -> None:
    """What goes on stands further to the right, and all words are there in their order."""
    text = f"memcheck: error: {LONG}\n  help: {LONG}\n"
    shown = filled(text, columns)
    lines = shown.split("\n")
    assert max(map(width, lines)) <= columns
    assert shown.split() == text.split()
    assert lines[0].startswith("memcheck: error: ")
    assert [line for line in lines if line.startswith("  help: ")]
    assert all(line.startswith("  ") for line in lines[1:-1])
    assert lines[-1] == ""


@pytest.mark.parametrize("terminal", [True, False])
def test_a_pipe_gets_whole_lines(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    """``grep`` finds a message as it is."""
    stream = Stream(terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "60")
    complain(LONG, "name one")
    told = stream.getvalue()
    assert (f"memcheck: error: {LONG}\n  help: name one\n" == told) == (not terminal)
    assert told.split() == f"memcheck: error: {LONG} help: name one".split()
