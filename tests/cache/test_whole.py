"""A run of many files that were all judged before says what it said then, and looks at the bytes of each of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from memcheck.__main__ import main
from memcheck.cli import kept, whole
from memcheck.cli.kept import Verdicts
from memcheck.edge import opener
from tests.cache.kept import Runs, others_own
from tests.cache.test_stale import CONFIG, ENGINE, add, edit, loses_git
from tests.cli.plans import GOOD, write, write_broken, write_over


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Runs:
    """A repository with a plan that fails, and one that rests on other files; so few are kept as a run, too."""
    monkeypatch.setattr(whole, "MANY", 1)
    made = Runs(tmp_path, monkeypatch, capsys)
    write_over(made.plans)
    base = GOOD.format(name="base").replace("model: llama-3.1-8b", "model: {config: model.json}")
    (made.plans / "base.yaml").write_text(base.replace("memcheck: 1\n", "#\n"), encoding="utf-8")
    (made.plans / "model.json").write_text(CONFIG, encoding="utf-8")
    (made.plans / "engine.json").write_text(ENGINE, encoding="utf-8")
    plan = "memcheck: 1\nextends: base.yaml\nsource: {deepspeed: engine.json}\n"
    (made.plans / "plan.yaml").write_text(f"{plan}# memcheck: ignore[MEM203] until: 2999-01-01 why\n", encoding="utf-8")
    return made


def is_whole(runs: Runs, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> bool:
    """Whether a run looks up no verdict of a single file."""
    looked: list[str] = []
    find = Verdicts.find

    def watched(verdicts: Verdicts, name: str) -> object:
        looked.append(name)
        return find(verdicts, name)

    with monkeypatch.context() as patch:
        patch.setattr(Verdicts, "find", watched)
        runs.check(*arguments)
    return not looked


def alone(runs: Runs) -> None:
    """Leave the plan that fails."""
    (runs.plans / "plan.yaml").unlink()
    (runs.plans / "base.yaml").unlink()


@pytest.mark.slow
def test_every_format_is_that_of_a_cold_run(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code, streams and reports, with one output and with several, narrow and wide."""
    formats = tuple(sorted(whole.FORMATS))
    (runs.plans / "inner").mkdir()
    write(runs.plans / "inner", "good")
    cold = runs.anew(formats=formats)
    assert runs.check(formats=formats) == cold
    assert runs.check(formats=formats) == cold
    plain = runs.anew()
    assert (runs.check(), is_whole(runs, monkeypatch), runs.check()) == (plain, True, plain)
    assert runs.check("--exit-zero") == (0, *plain[1:])
    monkeypatch.setenv("COLUMNS", "70")
    assert not is_whole(runs, monkeypatch)
    assert runs.check("--color", "always") == runs.anew("--color", "always")
    assert not is_whole(runs, monkeypatch, "--color", "always")


@pytest.mark.slow
def test_each_change_is_seen(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan, what it extends, its model, its source, a configuration, the repository, a file more or less."""
    (runs.plans / "over.yaml").unlink()
    write(runs.plans, "over")
    runs.check()
    changes: list[Callable[[Runs], object]] = [
        edit("plan.yaml", "why", "why not"),
        edit("base.yaml", "2048", "4096"),
        edit("model.json", "8192", "4096"),
        edit("engine.json", "3", "1"),
        add("pyproject.toml", '[tool.memcheck]\nignore = ["MEM203"]\n'),
        add("memcheck.toml", "fail-above = 0.5\n"),
        edit("memcheck.toml", "0.5", "0.9"),
        lambda runs: (runs.plans / "over.yaml").rename(runs.plans / "other.yaml"),
        lambda runs: (runs.plans / "other.yaml").unlink(),
        loses_git,
    ]
    for number, change in enumerate(changes):
        assert is_whole(runs, monkeypatch), number
        seen = (runs.plans / "plan.yaml").stat()
        change(runs)
        if number == 0:  # neither its time nor its place tells that it is another file
            os.utime(runs.plans / "plan.yaml", ns=(seen.st_atime_ns, seen.st_mtime_ns))
        cold = runs.anew("--format", "json")
        assert runs.check("--format", "json") == cold, number
        assert not is_whole(runs, monkeypatch), number
        runs.check()
    monkeypatch.setattr(opener, "today", lambda: opener.note("today", "", "2999-01-02") or "2999-01-02")
    assert not is_whole(runs, monkeypatch)


@pytest.mark.slow
def test_what_is_said_beside_the_reports_is_said_each_time(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A baseline, a file that lacks the mark, one that is broken, counts: such a run is none that is kept."""
    lines = (runs.plans / "over.yaml").read_text(encoding="utf-8").splitlines(keepends=True)
    (runs.plans / "lacks.yaml").write_text("".join(lines[1:]), encoding="utf-8")
    told = runs.check()
    assert "not checked" in told[2]
    assert (is_whole(runs, monkeypatch), runs.check()) == (False, told)
    (runs.plans / "lacks.yaml").unlink()
    runs.check()
    assert not is_whole(runs, monkeypatch, "--statistics")
    (runs.plans / "plan.yaml").unlink()
    assert main(["baseline", "write", "over.yaml", "--baseline", "accepted.json"]) == 0
    for _ in range(2):
        assert runs.check("--baseline", "accepted.json")[0] == 0
    assert not is_whole(runs, monkeypatch, "--baseline", "accepted.json")
    (runs.plans / "over.yaml").rename(runs.plans / "other.yaml")
    assert "accepts what is gone" in runs.check("--baseline", "accepted.json")[2]
    runs.check()
    write_broken(runs.plans)
    for _ in range(2):
        assert runs.check()[0] == 1
    assert not is_whole(runs, monkeypatch)


def test_a_changed_model_is_seen(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """What no plan holds itself is looked at, too."""
    (runs.plans / "over.yaml").unlink()
    runs.check()
    assert is_whole(runs, monkeypatch)
    edit("model.json", "8192", "4096")(runs)
    assert runs.check() == runs.anew()


def test_no_cache_holds(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is kept as a whole, and nothing that was is told."""
    alone(runs)
    runs.anew()
    assert runs.files() == []
    runs.check()
    assert is_whole(runs, monkeypatch)
    assert runs.judged("--no-cache") == ["over.yaml"]


def flip(text: str) -> str:
    """A verdict is another."""
    return text.replace("[true,", "[false,")


def strange(_: str) -> str:
    """It is no JSON of this kind."""
    return '{"a":1}'


def test_a_corrupt_run_is_as_good_as_absent(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut, changed, empty, sealed for another name, or sealed by who knows how: verdicts are looked up one by one."""
    alone(runs)
    told = runs.check()
    assert is_whole(runs, monkeypatch)
    kept = {path: path.read_bytes() for path in runs.files()}
    (one,) = (path for path, data in kept.items() if b",[true,[" in data)
    text = kept[one].decode()
    for change in (flip, strange, lambda text: text[:-9], lambda _: ""):
        one.write_text(text[:64] + change(text[64:]), encoding="utf-8")
        assert not is_whole(runs, monkeypatch)
        seal(one, "other", change(text[64:]))
        assert not is_whole(runs, monkeypatch)
    seal(one, one.name, strange(text))
    assert not is_whole(runs, monkeypatch)
    assert runs.check() == told


def seal(file: Path, name: str, body: str) -> None:
    """Put a body under the name of a file, sealed for a name."""
    folder = os.open(file.parent, os.O_RDONLY)
    kept.keep(folder, name, body, kept.LARGEST_RUN)
    os.close(folder)
    file.with_name(name).replace(file)


def test_a_run_that_another_user_owns_is_not_told(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor one that others can write."""
    runs.check()
    for path in runs.files():
        path.chmod(0o622)
    assert not is_whole(runs, monkeypatch)
    for path in runs.files():
        path.chmod(0o600)
        others_own(path)
    assert not is_whole(runs, monkeypatch)


def test_large_runs_are_judged_file_by_file(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are too large to be held together, and reports that are too large to be kept, cost no verdict."""
    alone(runs)
    cold = runs.anew("--format", "json")
    for where, name in ((whole, "MOST_HELD"), (kept, "LARGEST_RUN")):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, 100)
            for _ in range(2):
                assert runs.check("--format", "json") == cold
            assert not is_whole(runs, monkeypatch, "--format", "json")
    assert runs.check("--format", "json") == cold
    assert json.loads(cold[1])["summary"]["failed"] == 1
