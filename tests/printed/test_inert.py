"""One function stands before the terminal and the log; nothing that drives either gets past it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcheck.edge.json_text import dumps
from memcheck.edge.screen import Screen, inert, one_line
from tests.printed.harmless import HOSTILE, harm

PARTS = st.lists(st.one_of(st.sampled_from([*HOSTILE, "::", "##", "[", " ", "\n", "\r", "\t"]), st.text(max_size=4)))


@given(PARTS.map("".join))
def test_nothing_that_drives_a_terminal_or_a_runner_gets_past(text: str) -> None:
    """Whatever the text, no line of the result is a command and no character of it acts."""
    assert harm(inert(text)) == []


@given(st.text(st.characters(codec="ascii", min_codepoint=32, max_codepoint=126, exclude_characters=":#")))
def test_ordinary_text_is_left_alone(text: str) -> None:
    """Text without anything to see to is the text itself."""
    assert inert(text) == text


def test_what_the_screen_made_passes_and_the_rest_becomes_visible() -> None:
    """Colours and links of memcheck survive beside an escape that a plan's author wrote."""
    screen = Screen(color=True, links=True)
    ours = screen.link(screen.paint("MEM101", "error"), "https://docs.example/MEM101.md")
    assert inert(f"{ours} \x1b[2J\x1b]8;;https://evil.example\x1b\\x") == (
        f"{ours} \\x1b[2J\\x1b]8;;https://evil.example\\x1b\\x"
    )


def test_a_command_behind_a_colour_is_none() -> None:
    """A line is no command even where a colour stands before it."""
    painted = Screen(color=True).paint("::error::x", "error")
    assert harm(inert(painted), colors=True) == []


def test_the_arrow_of_a_second_file_stays() -> None:
    """``:::`` before the name of a second file is no command, and is printed as it is."""
    assert inert("  ::: base.yaml:1:2") == "  ::: base.yaml:1:2"


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_is_one_line(name: str) -> None:
    """A line end in a path cannot start a line of its own that reads like one of the report's."""
    assert "\n" not in one_line(name)


@given(PARTS.map("".join))
def test_json_says_the_same_without_harm(text: str) -> None:
    """JSON is one harmless line, and what a reader gets from it is the text as it was."""
    line = dumps({text: [text]})
    assert harm(line) == []
    assert len(line.splitlines()) == 1
    pairs = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    assert json.loads(line) == {pairs: [pairs]}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_characters="#")),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text(st.characters(exclude_characters="#")) | st.integers() | st.booleans(), inner)
    ),
)


@pytest.mark.slow
@given(VALUES, st.sampled_from([None, 1, 2]))
def test_json_is_that_of_the_standard_library(value: object, indent: int | None) -> None:
    """Byte for byte, where nothing has to be escaped beyond what JSON asks for."""
    expected = json.dumps(value, indent=indent, ensure_ascii=False)
    if expected.replace("\n", "").isprintable():
        assert dumps(value, indent) == expected
    assert repr(json.loads(dumps(value, indent))) == repr(json.loads(expected))


def test_what_json_does_not_have_is_refused() -> None:
    """A value that has no JSON is a defect, said as the standard library says it."""
    for indent in (None, 1):
        with pytest.raises(TypeError, match="Object of type set is not JSON serializable"):
            dumps({"a": [set()]}, indent)
