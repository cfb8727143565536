"""Source lines with the place underlined."""

from __future__ import annotations

import pytest

from memcheck.edge.screen import Screen, width
from memcheck.plan.finding import Finding, Location, Span
from memcheck.report.story.findings import excerpt
from memcheck.report.text_blocks import source
from tests.report.samples import result

WIDE = Screen(100)


def finding(where: Location, *related: tuple[str, Location]) -> Finding:
    """A finding at a place."""
    return Finding("MEM201", "world-size", "error", "message", where, related=related)


def at(line: int, column: int, end_column: int, note: str = "", path: str = "a.yaml", end_line: int = 0) -> Location:
    """A location in a file."""
    return Location(path, Span(line, column, end_line or line, end_column), note)


def shown(lines: list[str], where: Location, *related: tuple[str, Location], screen: Screen = WIDE) -> list[str]:
    """The snippet of one finding in ``a.yaml``."""
    plan = result(sources={"a.yaml": tuple(lines)})
    return source(excerpt(plan, finding(where, *related)), screen)


def test_caret_stands_under_the_value() -> None:
    """The header names line and column, the carets cover the span."""
    assert shown(["parallelism:", "  tensor: 4"], at(2, 11, 12)) == [
        " --> a.yaml:2:11",
        "  |",
        "2 |   tensor: 4",
        "  |           ^",
        "  |",
    ]


def test_related_places_come_in_the_order_of_the_file() -> None:
    """Places before and after the primary one are shown around it; a gap of one line is filled, a longer one cut."""
    lines = ["a: 1", "b: 2", "c: 3", "d: 4", "e: 5", "f: 6"]
    assert shown(lines, at(3, 4, 5), ("first", at(1, 4, 5)), ("last", at(6, 4, 5))) == [
        " --> a.yaml:3:4",
        "  |",
        "1 | a: 1",
        "  |    - first",
        "2 | b: 2",
        "3 | c: 3",
        "  |    ^",
        "...",
        "6 | f: 6",
        "  |    - last",
        "  |",
    ]


def test_two_places_on_one_line_share_it() -> None:
    """The line is printed once, with one row of underlines per place."""
    assert shown(["hardware: {gpu: h100, nodes: 2}"], at(1, 30, 31), ("this GPU", at(1, 17, 21)))[2:5] == [
        "1 | hardware: {gpu: h100, nodes: 2}",
        "  |                 ---- this GPU",
        "  |                              ^",
    ]


def test_place_in_another_file_gets_its_own_header() -> None:
    """What came from an extended plan is shown in that plan."""
    plan = result(sources={"a.yaml": ("a: 1",), "base.yaml": ("b: 2",)})
    lines = source(
        excerpt(plan, finding(at(1, 1, 2, note="from base.yaml"), ("set here", at(1, 4, 5, path="base.yaml")))),
        WIDE,
    )
    assert lines[0] == " --> a.yaml:1:1"
    assert "  | ^ from base.yaml" in lines
    assert " ::: base.yaml:1:4" in lines
    assert "  |    - set here" in lines


def test_span_over_lines_underlines_the_first() -> None:
    """A whole section is marked at its first line."""
    assert shown(["training: {", "  a: 1}"], at(1, 11, 8, end_line=2))[3] == "  |           ^"


@pytest.mark.parametrize("line", [0, 7])
def test_missing_line_is_no_failure(line: int) -> None:
    """A place beyond the text, or in a file without text, still has its header."""
    assert shown(["a: 1"], at(line or 2, 1, 1)) == [f" --> a.yaml:{line or 2}:1"]


def test_wide_characters_keep_the_caret_in_place() -> None:
    """Columns count characters, terminals count cells."""
    assert shown(["name: 模型 # 4"], at(1, 7, 9))[3] == "  |       ^^^^"


def test_tab_is_shown_as_spaces() -> None:
    """The caret stays under the place behind a tab."""
    assert shown(["\tx: 1"], at(1, 2, 3))[2:4] == ["1 |     x: 1", "  |     ^"]


@pytest.mark.parametrize("columns", [60, 80, 100, 120])
@pytest.mark.parametrize("column", [1, 50, 200, 395])
def test_long_line_is_cut_around_the_place(columns: int, column: int) -> None:
    """A line that is wider than the screen shows the part with the place, and the caret points at it."""
    text = "".join(chr(97 + index % 26) for index in range(400))
    lines = shown([text], at(1, column, column + 3, note="a label of some length"), screen=Screen(columns))
    assert all(width(line) <= columns for line in lines)
    source, caret = lines[2], lines[3]
    start = caret.index("^")
    assert source[start : start + 3] == text[column - 1 : column + 2]


def test_label_that_does_not_fit_goes_below() -> None:
    """A long label is broken over lines rather than cut."""
    label = "set at line 4 through the merge key of the base mapping in the file that is extended"
    lines = shown([" " * 40 + "x: 1"], at(1, 41, 45, note=label), screen=Screen(60))
    assert all(len(line) <= 60 for line in lines)
    text = " ".join(line.partition("|")[2].strip() for line in lines[4:-1])
    assert text == label


def test_a_long_line_is_never_looked_at_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is cleaned of a line stays near what a report shows of it."""
    looked: list[int] = []

    def clean(text: str) -> str:
        looked.append(len(text))
        return text

    monkeypatch.setattr("memcheck.report.excerpt.clean", clean)
    line = "é: 1, " * 4000
    for column in (1, 12_001, 23_995):
        lines = shown([line], at(1, column, column + 4))
        assert "^^^^" in "\n".join(lines)
        assert all(width(row) <= WIDE.columns for row in lines)
    assert max(looked) <= 4 * WIDE.columns


def test_marks_without_a_width_do_not_go_on_without_end() -> None:
    """Ten thousand combining marks are one letter wide, and are cut all the same."""
    line = "a: " + "\u0301" * 10_000
    assert max(len(row) for row in shown([line], at(1, 1, 2))) <= 4 * WIDE.columns + 20


def test_a_long_line_is_shown_around_each_place() -> None:
    """Every mark stands under its own word; a line is shown once for all places that one screen has room for."""
    line = "torchrun " + " ".join(f"--key{number:02d} value{number:02d}" for number in range(30))
    words = ("torchrun", "--key06", "--key09", "--key28")
    places = [at(1, line.index(word) + 1, line.index(word) + 1 + len(word), word) for word in words]
    first, *others = places
    for columns in (60, 100, 160):
        rows = shown([line], first, *(("", place) for place in others), screen=Screen(columns))
        assert all(len(row) <= columns for row in rows)
        sources = [row for row in rows if row.startswith("1 |")]
        assert 2 <= len(sources) <= 4, columns
        source, met = "", []
        for row in rows[1:]:
            if row.startswith("1 |"):
                source = row
            elif "^" in row or "--" in row:
                start = min(row.find(mark) for mark in "^-" if mark in row)
                met.append(source[start:].partition(" ")[0])
        assert met == list(words), columns


def test_a_mark_longer_than_the_screen_shows_its_start() -> None:
    """Its window begins shortly before it."""
    line = "a" * 200 + " " + "b" * 300 + " c"
    rows = shown([line], at(1, 202, 502))
    assert "a b" in rows[2]
    assert rows[3].index("^") == rows[2].index("b")
