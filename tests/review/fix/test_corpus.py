"""Two hundred generated plans with mistakes, mended."""

from __future__ import annotations

from collections import Counter

import pytest

from memcheck.cli.review import fix as rounds
from memcheck.judge import Gate, check_file
from memcheck.plan.finding import SEVERITIES, Edit
from memcheck.plan.read import load_documents
from memcheck.plan.value_edits import edited
from tests.review.fix.broken import broken

GATE = Gate(profile="review")
"""With the fixes of what only a reviewer asks for."""
SEEDS = range(200)
Change = tuple[bytes, list[Edit], bytes]


@pytest.fixture
def changes(monkeypatch: pytest.MonkeyPatch) -> list[Change]:
    """Every change of text that is tried, as it happens."""
    seen: list[Change] = []

    def remember(data: bytes, edits: list[Edit]) -> bytes:
        edits = list(edits)
        after = edited(data, edits)
        seen.append((data, edits, after))
        return after

    monkeypatch.setattr(rounds, "edited", remember)
    return seen


def outside(data: bytes, edits: list[Edit]) -> list[str]:
    """The pieces of a text between the spans of the edits, found by walking over it character by character."""
    text = data.decode()
    starts = {(edit.span.line, edit.span.column): edit for edit in edits}
    pieces, piece, skip = [], "", None
    line = column = 1
    for index, character in enumerate(text):
        if character == "\ufeff" and index == 0:
            piece += character
            continue
        if skip is not None and (line, column) == (skip.span.end_line, skip.span.end_column):
            skip = None
        if skip is None and (line, column) in starts:
            skip = starts.pop((line, column))
            pieces.append(piece)
            piece = ""
        if skip is None:
            piece += character
        broken_line = character == "\n" or (character == "\r" and text[index + 1 : index + 2] != "\n")
        line, column = (line + 1, 1) if broken_line else (line, column + 1)
    pieces += [""] * len(starts)
    return [*pieces, piece]


def said(data: bytes) -> list[Counter[tuple[str, str]]]:
    """What is found in each document."""
    results, traces = check_file("plan.yaml", data, GATE)
    assert traces == []
    return [Counter((finding.code, finding.message) for finding in result.findings) for result in results]


def gravity(data: bytes) -> tuple[int, ...]:
    """Errors, then warnings, then notes of all documents: notes are first seen once nothing keeps a plan from being judged."""
    results, _ = check_file("plan.yaml", data, GATE)
    return tuple(sum(result.count(severity) for result in results) for severity in reversed(SEVERITIES))


@pytest.mark.slow
@pytest.mark.parametrize("first", SEEDS[::20])
def test_every_applied_fix_makes_it_better(first: int, changes: list[Change]) -> None:
    """What was fixed is gone, the file parses, nothing outside the spans changed, and a second run finds no more."""
    for seed in range(first, first + 20):
        changes.clear()
        before = broken(seed)
        fixed = rounds.fix_file("plan.yaml", before, GATE)
        assert fixed.fixes, seed
        assert fixed.traces == ()
        for text, edits, after in changes:
            pieces = outside(text, edits)
            left = after.decode()
            for piece in filter(None, pieces):  # between edits that touch there is nothing
                assert piece in left, seed
                left = left.partition(piece)[2]
            replaced = sum(len(edit.text.encode()) for edit in set(edits))
            assert len(after) == sum(len(piece.encode()) for piece in pieces) + replaced, seed
        documents = load_documents("plan.yaml", fixed.data)
        assert all(isinstance(document.values, dict) for document in documents), seed
        assert len(documents) == len(load_documents("plan.yaml", before)), seed
        now = said(fixed.data)
        for fix in fixed.fixes:
            assert (fix.finding.code, fix.finding.message) not in now[fix.document], seed
        assert gravity(fixed.data) < gravity(before), seed
        assert gravity(fixed.data)[0] == 0, seed
        assert rounds.fix_file("plan.yaml", fixed.data, GATE) == rounds.Fixed(fixed.data), seed
