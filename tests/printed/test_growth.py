"""Long lines and many comments cost in proportion: counted in calls, so that a busy machine says the same."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from memcheck.config.suppressions import suppressions_of
from memcheck.edge.screen import Screen, beginning, width, wrap
from memcheck.plan.finding import Finding, Location, Span
from memcheck.report.story.findings import excerpt
from memcheck.report.text_blocks import source
from tests.report.samples import result


def steps(work: Callable[[], object]) -> int:
    """Calls and lines that the interpreter runs, with the length of every text that is measured."""
    count = 0

    def trace(frame: object, event: str, argument: object) -> object:
        nonlocal count
        count += 1
        code = frame.f_code  # type: ignore[attr-defined]
        if event == "call" and code.co_name in {"width", "clean"}:
            count += len(frame.f_locals["text"])  # type: ignore[attr-defined]
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def long_line(length: int) -> None:
    """A finding on a line of wide characters."""
    line = "\u6f22" * length
    where = Location("a.yaml", Span(1, 1, 1, 3))
    source(excerpt(result(sources={"a.yaml": (line,)}), Finding("MEM001", "x", "error", "m", where)), Screen())


def comments(count: int, rule: str = "MEM203") -> None:
    """A file of suppressing comments, one below the other, behind as many scalars."""
    keys = [f"k{number}: v" for number in range(count)]
    suppressions_of((*keys, *(f"# memcheck: ignore[{rule}] why {number}" for number in range(count))))


@pytest.mark.parametrize(
    "work",
    [
        long_line,
        lambda length: wrap("\u6f22" * length, 80),
        lambda length: wrap("\u6f22 " * length, 80),
        lambda length: beginning("\u6f22" * length, 80),
        comments,
    ],
    ids=["line", "word", "words", "beginning", "comments"],
)
def test_eight_times_the_input_costs_no_more_than_twice_eight_times(work: Callable[[int], object]) -> None:
    """Quadratic work would cost sixty-four times as much."""
    work(10)  # imports
    small, large = steps(lambda: work(250)), steps(lambda: work(2000))
    assert large <= 16 * small


def test_guesses_of_unknown_rules_end() -> None:
    """Looking up the closest name costs more than the comment; a file gets a hundred of them."""
    found = suppressions_of([f"# memcheck: ignore[MEMX{number}] why" for number in range(150)])
    assert found[0].problem[1].startswith("did you mean")
    assert not found[-1].problem[1].startswith("did you mean")


@pytest.mark.parametrize("room", [0, 1, 2, 5, 80])
@pytest.mark.parametrize("text", ["", "abc", "\u6f22\u5b57", "e\u0301e\u0301", "a\u6f22b"])
def test_the_beginning_is_the_longest_that_fits(text: str, room: int) -> None:
    """Character by character from the end gives the same."""
    expected = text
    while width(expected) > room:
        expected = expected[:-1]
    assert beginning(text, room) == expected
