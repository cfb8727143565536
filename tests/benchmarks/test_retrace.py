"""The recorded traces that `memcheck verify` traced again."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import retrace


def test_the_table_is_of_today() -> None:
    """Same recorded peaks, each met to 0.1 %, and the predictions that are made today."""
    assert retrace.stale() == []


@pytest.mark.parametrize(
    ("key", "factor", "said"),
    [
        ("recorded_bytes", 2.0, "another one"),
        ("observed_bytes", 1.002, "from the recorded peak"),
        ("predicted_bytes", 1.002, "predicted otherwise"),
    ],
)
def test_a_row_that_is_not_of_today_is_named(
    key: str, factor: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what is wrong about it; the table is stale with it."""
    rows: dict[str, dict[str, Any]] = retrace.read()
    name = next(iter(rows))
    rows[name] = {**rows[name], key: int(rows[name][key] * factor)}
    monkeypatch.setattr(retrace, "read", lambda: rows)
    assert any(problem.startswith(name) and said in problem for problem in retrace.stale())
