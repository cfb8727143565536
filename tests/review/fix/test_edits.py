"""Edits change what is in their spans, and nothing else."""

from __future__ import annotations

import pytest

from memcheck.cli.review.fix import disjoint
from memcheck.plan.finding import Edit, Span
from memcheck.plan.value_edits import edited


def edit(line: int, column: int, end_column: int, text: str, end_line: int = 0) -> Edit:
    """An edit, on one line unless said otherwise."""
    return Edit(Span(line, column, end_line or line, end_column), text)


@pytest.mark.parametrize(
    ("before", "edits", "after"),
    [
        (b"a: 1\nb: 2\n", [edit(2, 4, 5, "30")], b"a: 1\nb: 30\n"),
        (b"a: 1\nb: 2", [edit(1, 1, 2, "x"), edit(2, 4, 5, "30")], b"x: 1\nb: 30"),
        (b"a: 1\r\nb: 2\r\n", [edit(2, 1, 1, "c: 3\n")], b"a: 1\r\nc: 3\r\nb: 2\r\n"),
        (b"a: 1\r\nb: 2", [edit(2, 1, 1, "c: 3\n")], b"a: 1\r\nc: 3\r\nb: 2"),
        (b"a: 1\rb: 2\n", [edit(1, 1, 1, "c: 3\n")], b"c: 3\ra: 1\rb: 2\n"),
        (b"\xef\xbb\xbfa: 1\n", [edit(1, 4, 5, "2")], b"\xef\xbb\xbfa: 2\n"),
        ("ä: 模 # 💥\nb: 1\n".encode(), [edit(1, 4, 5, "x")], "ä: x # 💥\nb: 1\n".encode()),
        (b"a: 1\n# gone\nb: 2\n", [edit(2, 1, 1, "", 3)], b"a: 1\nb: 2\n"),
        (b"a: 1\n# gone\n", [edit(2, 1, 1, "", 3)], b"a: 1\n"),
        (b"a: 1\n", [edit(1, 4, 5, "2"), edit(1, 4, 5, "2")], b"a: 2\n"),
        ("a: '\u2028'\nb: 1\n".encode(), [edit(3, 4, 5, "2")], "a: '\u2028'\nb: 2\n".encode()),
    ],
)
def test_edited(before: bytes, edits: list[Edit], after: bytes) -> None:
    """Marks, line ends and whatever UTF-8 has stay as they are."""
    assert edited(before, edits) == after


def test_overlapping_edits_wait() -> None:
    """Of fixes that want the same text, the first is made; equal edits are one; a fix is made whole or not at all."""
    one, inside, behind = edit(1, 1, 5, "a"), edit(1, 3, 4, "b"), edit(1, 5, 6, "c")
    insert = edit(1, 5, 5, "d")
    assert [name for name, _ in disjoint([("one", [one]), ("inside", [inside]), ("behind", [behind])])] == [
        "one",
        "behind",
    ]
    assert [name for name, _ in disjoint([("one", [one]), ("again", [one])])] == ["one", "again"]
    assert [name for name, _ in disjoint([("one", [one]), ("both", [inside, behind]), ("c", [behind])])] == ["one", "c"]
    assert [name for name, _ in disjoint([("insert", [insert]), ("behind", [behind])])] == ["insert"]
    assert [name for name, _ in disjoint([("torn", [one, inside]), ("inside", [inside])])] == ["inside"]
