"""Suppressing comments are found where YAML has comments, and are read strictly."""

from __future__ import annotations

import pytest

from memcheck.config.suppressions import suppressions_of, without
from memcheck.plan.value_edits import apply_edits


def one(comment: str):
    """The single suppression of a line."""
    (found,) = suppressions_of((f"a: 1  {comment}",))
    return found


@pytest.mark.parametrize(
    ("comment", "codes", "until"),
    [
        ("# memcheck: ignore[MEM208] fine", ("MEM208",), ""),
        ("#memcheck: ignore[mem208, MEM105]  fine", ("MEM208", "MEM105"), ""),
        ("# memcheck: ignore[zero-without-data-parallel] fine", ("MEM208",), ""),
        ("# memcheck: ignore[MEM208, MEM208] fine", ("MEM208",), ""),
        ("# memcheck: ignore[MEM208] fine, until: 2026-12-31", ("MEM208",), "2026-12-31"),
        ("# memcheck: ignore[MEM208] until: 2026-12-31, then it is fine.", ("MEM208",), "2026-12-31"),
        ("# memcheck: ignore[MEM208] fine (until: 2026-12-31).", ("MEM208",), "2026-12-31"),
        ("# see above # memcheck: ignore[MEM208] fine", ("MEM208",), ""),
    ],
)
def test_what_a_comment_says(comment: str, codes: tuple[str, ...], until: str) -> None:
    """Rules by code or name, a reason, and a last day anywhere in the reason."""
    found = one(comment)
    assert (found.codes, found.until, found.problem) == (codes, until, ("", ""))


@pytest.mark.parametrize(
    ("comment", "problem"),
    [
        ("# memcheck: ignore because", "the suppression names no rule"),
        ("# memcheck: ignore[] because", "the suppression names no rule"),
        ("# memcheck: ignore[MEM208 because", "the suppression names no rule"),
        ("# memcheck: ignore[MEM2] because", "no rule has the code or name `MEM2`"),
        ("# memcheck: ignore[MEM208,MEM999] because", "no rule has the code or name `MEM999`"),
        ("# memcheck: ignore[MEM208]", "the suppression gives no reason"),
        ("# memcheck: ignore[MEM208] --", "the suppression gives no reason"),
        ("# memcheck: ignore[MEM208] until: 2026-12-31", "the suppression gives no reason"),
        ("# memcheck: ignore[MEM208] fine until: tomorrow", "`tomorrow` is no date"),
        ("# memcheck: ignore[MEM208] fine until: 2026-02-30", "`2026-02-30` is no date"),
        ("# memcheck: ignore[MEM208] fine until: 2026-1-1", "`2026-1-1` is no date"),
    ],
)
def test_what_is_wrong_with_a_comment(comment: str, problem: str) -> None:
    """A comment with a mistake names no codes, so that it hides nothing, and says what is wrong and what to do."""
    found = one(comment)
    assert (found.codes, found.problem[0]) == ((), problem)
    assert found.problem[1]


def test_misspelt_rule_gets_the_close_one() -> None:
    """The help names the rule that was meant."""
    assert one("# memcheck: ignore[world-sise] fine").problem[1] == "did you mean `world-size`?"


@pytest.mark.parametrize(
    "text",
    [
        "a: '# memcheck: ignore[MEM208] no'",
        'a: "x # memcheck: ignore[MEM208] no"',
        "a: |\n  # memcheck: ignore[MEM208] no\nb: 1",
        "a: >\n  x\n\n  # memcheck: ignore[MEM208] no",
        "a: x#memcheck: ignore[MEM208] no",
        "a: 'open\n# memcheck: ignore[MEM208] behind what cannot be read",
    ],
)
def test_text_is_no_comment(text: str) -> None:
    """What only looks like a comment, inside quotes, block text or broken YAML, is none."""
    assert suppressions_of(tuple(text.split("\n"))) == []


def test_lines_that_are_covered() -> None:
    """A comment behind text covers its line; one of its own the next line that is no comment."""
    text = (
        "a: 1  # memcheck: ignore[MEM208] x\n"
        "# memcheck: ignore[MEM208] x\n"
        "  # memcheck: ignore[MEM105] x\n"
        "# prose\n"
        "b: |\n"
        "  text\n"
        "# memcheck: ignore[MEM208] x\n"
        "\n"
        "c: 'two\n"
        "  lines'  # memcheck: ignore[MEM208] x"
    )
    assert [(each.line, each.covers) for each in suppressions_of(tuple(text.split("\n")))] == [
        (1, 1),
        (2, 5),
        (3, 5),
        (7, 8),
        (10, 10),
    ]


def test_two_in_one_line() -> None:
    """Each has its own reason and span."""
    line = "a: 1 # memcheck: ignore[MEM208] x # memcheck: ignore[MEM105]"
    first, second = suppressions_of((line,))
    assert line[first.span.column - 1 : first.span.end_column - 1] == "# memcheck: ignore[MEM208] x"
    assert line[second.span.column - 1 : second.span.end_column - 1] == "# memcheck: ignore[MEM105]"
    assert (first.codes, second.codes) == (("MEM208",), ())


@pytest.mark.parametrize(
    ("before", "kept", "after"),
    [
        ("a: 1   # memcheck: ignore[MEM208] x", (), "a: 1\n"),
        ("  # memcheck: ignore[MEM208] x\na: 1", (), "a: 1\n"),
        ("a: 1\n# memcheck: ignore[MEM208] x", (), "a: 1\n\n"),
        ("a: 1  # prose # memcheck: ignore[MEM208] x", (), "a: 1  # prose\n"),
        ("a: 1 # memcheck: ignore[MEM105, MEM208] x", ("MEM105",), "a: 1 # memcheck: ignore[MEM105] x\n"),
    ],
)
def test_taking_a_comment_away(before: str, kept: tuple[str, ...], after: str) -> None:
    """What is left is the text without the comment, its white space and, if nothing else is on it, its line."""
    lines = tuple(before.split("\n"))
    (found,) = suppressions_of(lines)
    assert apply_edits((*lines, ""), (without(lines, found, kept),)) in {after, after + "\n"}
