"""Sentences that users read have at most thirty words, and none of the words that they would have to look up."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.sentences import LONGEST, Sentence, in_markdown, in_module, in_schema

OURS = re.compile(r"\b(behind|besides?|so many|rests|nobody|whoever)\b", re.IGNORECASE)
"""Words of our own, each with a plain one in its place: after, with, N, is kept, no one."""


@pytest.fixture(scope="module")
def sentences(root: Path) -> list[tuple[str, Sentence]]:
    """Every sentence of messages, help and schemas, and the file it is in."""
    return list(_sentences(root))


def _sentences(root: Path) -> Iterator[tuple[str, Sentence]]:
    for path in sorted((root / "memcheck").rglob("*.py")):
        yield from ((path.relative_to(root).as_posix(), each) for each in in_module(path))
    for path in sorted((root / "schemas").glob("*.json")):
        yield from ((path.relative_to(root).as_posix(), each) for each in in_schema(path))


@pytest.mark.slow
def test_sentences_are_short(sentences: list[tuple[str, Sentence]]) -> None:
    """Messages, help of commands, pages of rules and descriptions of schemas."""
    assert len(sentences) > 5000
    assert [
        f"{file}:{each.line}: {each.words} words: {each.text}" for file, each in sentences if each.words > LONGEST
    ] == []


@pytest.mark.slow
def test_words_are_plain(sentences: list[tuple[str, Sentence]]) -> None:
    """A key or a name in code may be called anything; a sentence of two words or more may not."""
    wrong = [(file, each) for file, each in sentences if each.words > 1 and OURS.search(each.text)]
    assert [f"{file}:{each.line}: {each.text}" for file, each in wrong] == []


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("One two. Three four five.", [2, 3]),
        ("One `two three` four, e.g. five.", [5]),
        ("| a b | c. D e |", [2, 1, 2]),
        ("- one two\n- three\n\nfour\nfive", [2, 1, 2]),
        ("One.\n\n```sh\nnot this\n```\n\nTwo [three four](x.md) five.", [1, 4]),
        ("kept: one two. dropped: three.", [3, 2]),
        ("2.5 GiB of version 1.2", [5]),
    ],
)
def test_sentences_are_told_apart(text: str, counts: list[int]) -> None:
    """Spans of code are a word, numbers end no sentence, items and cells end one."""
    assert [each.words for each in in_markdown(text) if each.words] == counts
