"""Guesses of what a misspelt word was meant to be."""

from __future__ import annotations

from difflib import get_close_matches

from hypothesis import given
from hypothesis import strategies as st

from memcheck.errors import closest

WORDS = st.lists(st.text("abcde-", max_size=12), max_size=8)


@given(word=st.text("abcde-", max_size=12), known=WORDS, most=st.integers(1, 4), cutoff=st.floats(0, 1))
def test_guesses_are_those_of_difflib(word: str, known: list[str], most: int, cutoff: float) -> None:
    """Words of the length of names are compared as the standard library does."""
    assert closest(word, known, most, cutoff) == get_close_matches(word, known, most, cutoff)


def test_nothing_is_guessed_of_a_word_longer_than_any_name() -> None:
    """A word of two hundred characters still has a guess, and a longer one has none, though it is known."""
    assert closest("x" * 200, ["x" * 200]) == ["x" * 200]
    assert closest("x" * 201, ["x" * 200, "x" * 201]) == []
    assert closest("x" * 200, ["x" * 201]) == []
