"""``--no-suppressions``: a gate whose findings no comment of the pull request hides."""

from __future__ import annotations

from pathlib import Path

import pytest

from memcheck.__main__ import main
from tests.cli.plans import write_over


def test_comments_hide_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan that passes by its comment fails, and the comment itself is not called unused."""
    path = write_over(tmp_path)
    text = path.read_text(encoding="utf-8")
    path.write_text(
        "memcheck: 1  # memcheck: ignore[MEM101] borrowed" + text.removeprefix("memcheck: 1"), encoding="utf-8"
    )
    assert main(["check", str(path)]) == 0
    capsys.readouterr()
    assert main(["check", "--no-suppressions", "--format=concise", str(path)]) == 1
    out = capsys.readouterr().out
    assert "MEM101" in out
    assert "MEM031" not in out
