"""Runs of ``check`` in a process that keeps verdicts, and in one that does not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from memcheck.__main__ import main
from memcheck.report import FORMATS

TEXT = tuple(name for name in FORMATS if name not in {"pdf", "github"})
"""Formats without an extra, and without a random word in them."""

Outcome = tuple[int, str, str, list[bytes]]


class Runs:
    """One repository, and one cache directory beside it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.plans = folder / "repository"
        (self.plans / ".git").mkdir(parents=True)
        self.caches = folder / "caches"
        self.kept = self.caches / "memcheck"
        self.reports = folder / "reports"
        self.reports.mkdir()
        self._monkeypatch, self._capsys = monkeypatch, capsys
        monkeypatch.chdir(self.plans)
        monkeypatch.setenv("XDG_CACHE_HOME", str(self.caches))
        monkeypatch.delenv("MEMCHECK_NO_CACHE")

    def check(self, *arguments: str, formats: tuple[str, ...] = ()) -> Outcome:
        """Exit code, streams and report files."""
        self._capsys.readouterr()
        outputs = [f"--format={name}={self.reports / name}" for name in formats]
        code = main(["check", *arguments, *outputs])
        out, err = self._capsys.readouterr()
        return code, out, err, [(self.reports / name).read_bytes() for name in formats]

    def anew(self, *arguments: str, formats: tuple[str, ...] = ()) -> Outcome:
        """The same without the cache."""
        return self.check(*arguments, "--no-cache", formats=formats)

    def judged(self, *arguments: str) -> list[str]:
        """The files that a run judges, as it does not take their verdicts from an earlier one."""
        from memcheck import judge

        seen: list[str] = []
        check_file = judge.check_file

        def watched(path: str, *rest: object) -> object:
            seen.append(path)
            return check_file(path, *rest)  # type: ignore[arg-type]

        with self._monkeypatch.context() as patch:
            patch.setattr(judge, "check_file", watched)
            self.check(*arguments)
        return seen

    def files(self) -> list[Path]:
        """What is kept."""
        return sorted(self.kept.iterdir()) if self.kept.is_dir() else []


def others_own(path: Path) -> None:
    """Give a file or folder to another user."""
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    os.chown(path, 65534, 65534)
