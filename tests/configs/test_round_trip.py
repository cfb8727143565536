"""Out to a framework's config and back: the same memory, to the byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from memcheck.configs.formats import WRITTEN
from memcheck.job.types import TrainingJob
from memcheck.plan.document import Document
from memcheck.plan.load import load_documents
from tests.configs.jobs import FOR, MADE, back, examples, made, peaks, resolved, runs_from, written

CASES = [(name, format) for name in MADE for format in FOR[name.partition("-")[0]]]


def returned(document: Document, format: str) -> Document:
    """The plan that comes back; nothing may be missing on the way."""
    imported = back(document, format, written(document, format))
    assert imported.problems == ()
    assert imported.notes == ()
    (again,) = load_documents("again.yaml", imported.text.encode())
    return again


@pytest.mark.parametrize(("name", "format"), CASES)
def test_made_plans_come_back(name: str, format: str) -> None:
    """Every layout, recipe and option that a format can say survives, and so does the predicted peak."""
    document = made(name)
    assert written(document, format).lost == ()
    again = returned(document, format)
    assert peaks(again) == peaks(document)
    first, second = (resolved(each)[1].job for each in (document, again))
    assert isinstance(first, TrainingJob)
    assert isinstance(second, TrainingJob)
    for field in ("layout", "recipe", "micro_batch_size", "sequence_length", "gradient_accumulation_steps"):
        assert getattr(first, field) == getattr(second, field), field


@pytest.mark.parametrize("format", list(WRITTEN))
def test_examples_come_back(root: Path, format: str) -> None:
    """Every example that runs from a format comes back from it with the same peak."""
    found = 0
    for name, document in examples(root / "examples"):
        if runs_from(document, format):
            assert written(document, format).lost == (), name
            assert peaks(returned(document, format)) == peaks(document), name
            found += 1
    assert found >= 2


def test_tables_are_shared() -> None:
    """A path of a framework stands for one key of the plan, and a key for one path: reader and writer cannot drift."""
    from memcheck.configs import accelerate_keys, deepspeed_keys, megatron_keys, torchtitan_keys

    tables = (
        torchtitan_keys.ROWS,
        deepspeed_keys.ROWS,
        (*accelerate_keys.DEGREES, *accelerate_keys.ENGINE),
        (*megatron_keys.DIMENSIONS, *megatron_keys.LAYOUT, *megatron_keys.OPTIONS),
    )
    for rows in tables:
        names = [name for row in rows for name in (row.path, *row.aliases)]
        assert len(names) == len(set(names))
        assert len({row.key for row in rows}) == len(rows)
        for row in rows:
            assert row.kind == "word" or not isinstance(row.default, str), row
