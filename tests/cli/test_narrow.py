"""Tables on narrow screens, and what a long search says meanwhile."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from memcheck.__main__ import main
from memcheck.cli import progress
from memcheck.edge.screen import width
from memcheck.report.table import fitting
from tests.cli.plans import write, write_over

Capture = pytest.CaptureFixture[str]
COMMANDS = {
    "compare": "compare good.yaml over.yaml",
    "sweep": "sweep good.yaml --set training.micro_batch_size=1,2 --set training.sequence_length=1024,2048",
    "models": "list models",
    "gpus": "list gpus",
    "rules": "list rules",
    "frameworks": "list frameworks",
    "check": "check good.yaml over.yaml",
    "estimate": "estimate over.yaml",
    "suggest": "suggest over.yaml",
    "observed": "verify over.yaml --observed 10GiB",
    "diff": "diff good.yaml over.yaml",
}


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs in a folder with two plans, without colours."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    write(tmp_path)
    write_over(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [60, 80])
@pytest.mark.parametrize("command", COMMANDS.values(), ids=list(COMMANDS))
def test_no_line_is_wider_than_the_screen(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, command: str, columns: int
) -> None:
    """Columns give way, longest first to be missed, and the screen says which."""
    monkeypatch.setenv("COLUMNS", str(columns))
    main(command.split())
    assert max(map(width, capsys.readouterr().out.splitlines())) <= columns


def test_what_gives_way_is_named(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict stays, the figures that are left out are listed, and a wide screen leaves out nothing."""
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["compare", "good.yaml"]) == 0
    out = capsys.readouterr().out
    assert "verdict" in out.splitlines()[0]
    assert "TFLOPS" not in out.splitlines()[0]
    assert "no room for" in out
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["compare", "good.yaml"]) == 0
    out = capsys.readouterr().out
    assert "TFLOPS" in out.splitlines()[0]
    assert "no room for" not in out


def test_expendable_columns_give_way_in_their_order() -> None:
    """As many as it takes, and never one that is not expendable."""
    widths = [10, 10, 10, 10]
    assert fitting(widths, [2, 1], 100) == [0, 1, 2, 3]
    assert fitting(widths, [2, 1], 34) == [0, 1, 3]
    assert fitting(widths, [2, 1], 10) == [0, 3]


def test_of_too_many_points_that_do_not_fit_the_closest_are_shown(capsys: Capture) -> None:
    """Where nothing fits, the table is not empty: it holds the points that need the least, and says so."""
    sets = ["--set", "training.sequence_length=4096,8192", "--set", "training.gradient_accumulation_steps=1..40"]
    assert main(["sweep", "over.yaml", *sets]) == 0
    out = capsys.readouterr().out
    assert "80 points: 80 do not fit" in out
    assert "these are those that come closest to fitting" in out
    assert out.count("does not fit") == 60


class Terminal(io.StringIO):
    """A stream on which somebody looks."""

    def isatty(self) -> bool:
        """Always."""
        return True


def test_a_sweep_leaves_no_trace_of_how_far_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal shows the count of points while they are estimated; the table comes where it stood."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(progress, "SECONDS", 0.0)
    show = progress.progress("sweep", 3, wanted=False)
    assert show is not None
    for done in (1, 2, 3):
        show(done)
    told = screen.getvalue()
    assert "\rsweep: 1 of 3 (33%)" in told
    assert told.endswith("\r")
    assert not told.rpartition("%)")[2].strip()


@pytest.mark.slow
def test_a_long_search_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal shows a count once patience ends, and nothing of it is left; a pipe stays silent."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(progress, "QUIET_S", 0.0)
    monkeypatch.setattr(progress, "SECONDS", 0.0)
    assert main(["suggest", "over.yaml", "--format", "json"]) == 0
    told = screen.getvalue()
    assert "\rsuggest: 64 plans looked at" in told
    assert told.endswith("\r")
    assert not told.rpartition("looked at")[2].strip()
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert main(["suggest", "over.yaml", "--format", "json"]) == 0
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]
