"""Whole configurations as transformers 5.23 writes them, derived and idle keys included."""

from __future__ import annotations

import json
from typing import Any

import pytest

from memcheck.catalog.names import read_config
from memcheck.families.registry import read_architecture
from tests.models.written import FILE, types, written

WRITTEN: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))


def test_every_family_is_there() -> None:
    """A family that is added has its file recorded."""
    assert list(WRITTEN) == types()


def test_a_whole_file_is_read() -> None:
    """No key that transformers writes stops the family, whether a tool wrote the file or a person repeats it."""
    for file in WRITTEN.values():
        read_architecture(file)
        read_architecture(file, strict=True)


def test_infinity_is_read(tmp_path: Any) -> None:
    """Python's json writes limits of step sizes as Infinity, which is no JSON; they decide no size."""
    text = json.dumps({**WRITTEN["nemotron_h"], "time_step_limit": [0.0, float("inf")]})
    assert "Infinity" in text
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    assert read_architecture(read_config("config.json", str(tmp_path))) == read_architecture(WRITTEN["nemotron_h"])


@pytest.mark.slow
@pytest.mark.torch
def test_what_transformers_writes_today_is_read() -> None:
    """The installed transformers' own files are read, too."""
    pytest.importorskip("transformers", minversion="5.0")
    for kind in types():
        read_architecture(written(kind))
