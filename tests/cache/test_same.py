"""A run that finds every verdict kept says what a run that judges says, to the last byte."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cache.kept import TEXT, Runs
from tests.cli.plans import write, write_broken, write_over


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Runs:
    """An empty repository."""
    return Runs(tmp_path, monkeypatch, capsys)


@pytest.mark.slow
def test_kept_verdicts_are_the_verdicts(runs: Runs) -> None:
    """Passes, remedies, hidden findings and what was accepted: streams, exit code and reports are those of a cold run."""
    write(runs.plans, "good")
    write_over(runs.plans)
    write_over(runs.plans, "accepted")
    over = runs.plans / "over.yaml"
    both = f"{over.read_text()}---\n{over.read_text().replace('gpu:', 'gpu: l40s  # memcheck: ignore[MEM101] known #')}"
    (runs.plans / "two.yaml").write_text(both, encoding="utf-8")
    accept(runs)
    (runs.plans / "memcheck.toml").write_text('baseline = "accepted.json"\nwarn-above = 0.1\n', encoding="utf-8")
    formats = ("json", "sarif", "markdown", "concise")
    cold = runs.anew(formats=formats)
    assert runs.files() == []
    assert (runs.check(formats=formats), len(runs.files())) == (cold, 4)
    assert runs.check(formats=formats) == cold
    assert runs.judged() == []
    summary = json.loads(cold[3][0])["summary"]
    assert (cold[0], summary["suppressed"], summary["baselined"], summary["plans"]) == (1, 1, 1, 5)


def accept(runs: Runs) -> None:
    """Accept the findings of one plan."""
    from memcheck.__main__ import main

    assert main(["baseline", "write", "accepted.yaml", "--baseline", "accepted.json"]) == 0


def test_what_is_no_verdict_is_not_kept(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that cannot be read is read anew each time, and so is one on which memcheck failed."""
    write_broken(runs.plans)
    assert runs.check()[0] == 1
    assert runs.files() == []
    (runs.plans / "broken.yaml").unlink()
    write(runs.plans)

    def fails(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr("memcheck.judge.estimate", fails)
        assert runs.check()[0] == 3
    assert runs.files() == []
    assert runs.check()[0] == 0
    assert len(runs.files()) == 1


@pytest.mark.parametrize("arguments", [("--no-cache",), ()], ids=["option", "environment"])
def test_nothing_is_kept_on_request(runs: Runs, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]) -> None:
    """``--no-cache`` and the environment switch both directions off."""
    write(runs.plans)
    if not arguments:
        monkeypatch.setenv("MEMCHECK_NO_CACHE", "1")
    assert runs.judged(*arguments) == ["good.yaml"]
    assert not runs.caches.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folder", "options", "formats", "least"),
    [
        ("examples", (), TEXT, 20),
        ("docs/rules/examples", ("--profile", "research", "--jobs", "2"), ("json", "full"), 100),
    ],
    ids=["gate", "jobs"],
)
def test_every_example_in_every_format(
    runs: Runs, root: Path, folder: str, options: tuple[str, ...], formats: tuple[str, ...], least: int
) -> None:
    """All examples in all formats, and all bad and good plans of the rules in JSON and text, beside their cold run."""
    shutil.copytree(root / folder, runs.plans / "plans")
    cold = runs.anew(*options, formats=formats)
    first = runs.check(*options, formats=formats)
    kept = len(runs.files())
    assert first == cold
    assert runs.check(*options, formats=formats) == cold
    assert (len(runs.files()), kept > least) == (kept, True)
