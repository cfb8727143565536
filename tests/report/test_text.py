"""Text building blocks: sizes, line breaking, user text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcheck.edge.screen import between, clean, gib, percent, plural, value, width, words, wrap


def test_sizes_are_gib_with_two_decimals() -> None:
    """People read GiB (2**30), never GB."""
    assert gib(2**30) == "1.00"
    assert gib(1536 * 2**30) == "1,536.00"
    assert percent(0.9714) == "97.1%"


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [
        (108.51, 121.55, "between 108.5 and 121.6"),
        (29.4, 30.6, "between 29.4 and 30.6"),
        (1.234, 9.871, "between 1.23 and 9.88"),
        (1000.0, 2000.01, "between 1,000.0 and 2,000.1"),
        (0.0, 0.0, "between 0.00 and 0.00"),
    ],
)
def test_intervals_are_told_without_a_second_percentage(low: float, high: float, told: str) -> None:
    """Rounded outwards, so that an interval that crosses a limit is not shown to end at it."""
    assert between((int(low * 2**30), int(high * 2**30))) == told


def test_counts_agree_with_their_noun() -> None:
    """``1 plan`` but ``0 plans``."""
    assert [plural(n, "plan") for n in (0, 1, 2, 2048)] == ["0 plans", "1 plan", "2 plans", "2,048 plans"]


def test_component_names_are_words() -> None:
    """Underscores are for programs."""
    assert words("context_and_nccl") == "context and NCCL"
    assert words("optimizer_states") == "optimizer states"


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (None, "unset"),
        (True, "true"),
        (4, "4"),
        ("full", "full"),
        ({"mode": "full", "reentrant": False}, "{mode: full, reentrant: false}"),
        (["embed", "layers:0-24"], "[embed, layers:0-24]"),
    ],
)
def test_values_look_like_yaml(item: object, expected: str) -> None:
    """A value is shown as the plan would state it."""
    assert value(item) == expected


def test_wide_characters_take_two_cells() -> None:
    """East Asian characters are two cells wide, combining marks none."""
    assert width("模型") == 4
    assert width("e\u0301") == 1


@pytest.mark.parametrize("text", ["\x1b[31mred", "a\rb", "a\x00b", "\u202eevil", "\x9b31m"])
def test_no_character_can_drive_the_terminal(text: str) -> None:
    """Escapes, carriage returns and direction marks of user text are shown, not obeyed."""
    assert clean(text).isprintable()
    assert "\\x" in clean(text) or "\\u" in clean(text)


@given(st.text(), st.integers(2, 80))
def test_wrapped_lines_fit(text: str, columns: int) -> None:
    """No line is wider than asked, and no visible character is lost."""
    lines = wrap(text, columns)
    assert all(width(line) <= columns for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


def test_first_line_leaves_room_for_a_label() -> None:
    """What stands before the text on the first line counts."""
    assert wrap("aaaa bbbb cccc", 9, 5) == ["aaaa", "bbbb cccc"]
