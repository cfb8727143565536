"""Whatever a verdict rests on and that is another now: the plan is judged anew."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import memcheck
from memcheck.cli import kept
from memcheck.edge import opener
from tests.cache.kept import Runs
from tests.cli.plans import GOOD

pytestmark = pytest.mark.slow

CONFIG = '{"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 16, '
CONFIG += '"intermediate_size": 8192, "vocab_size": 32000, "num_key_value_heads": 8}'
ENGINE = '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}'


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Runs:
    """A repository with a plan that takes its model, its base and its engine from other files."""
    made = Runs(tmp_path, monkeypatch, capsys)
    base = GOOD.format(name="base").replace("model: llama-3.1-8b", "model: {config: model.json}")
    (made.plans / "base.yaml").write_text(base.replace("memcheck: 1\n", ""), encoding="utf-8")
    (made.plans / "model.json").write_text(CONFIG, encoding="utf-8")
    (made.plans / "engine.json").write_text(ENGINE, encoding="utf-8")
    plan = "memcheck: 1\nextends: base.yaml\nsource: {deepspeed: engine.json}\n"
    (made.plans / "plan.yaml").write_text(f"{plan}# memcheck: ignore[MEM203] until: 2999-01-01 why\n", encoding="utf-8")
    return made


def edit(name: str, old: str, new: str) -> Callable[[Runs], None]:
    """A change of one file."""

    def change(runs: Runs) -> None:
        text = (runs.plans / name).read_text(encoding="utf-8")
        assert old in text
        (runs.plans / name).write_text(text.replace(old, new), encoding="utf-8")

    return change


def add(name: str, text: str) -> Callable[[Runs], None]:
    """A file that was not there."""
    return lambda runs: (runs.plans / name).write_text(text, encoding="utf-8") and None


def loses_git(runs: Runs) -> None:
    """The repository is none any more."""
    (runs.plans / ".git").rmdir()


@pytest.mark.parametrize(
    "change",
    [
        edit("plan.yaml", "why", "why not"),
        edit("base.yaml", "2048", "4096"),
        edit("model.json", "8192", "4096"),
        edit("engine.json", "3", "1"),
        add("memcheck.toml", "fail-above = 0.5\n"),
        add("pyproject.toml", '[tool.memcheck]\nignore = ["MEM203"]\n'),
        loses_git,
    ],
    ids=["plan", "extends", "model.config", "source", "configuration", "pyproject", "repository"],
)
def test_a_change_is_seen(runs: Runs, change: Callable[[Runs], None]) -> None:
    """The verdict after a change of any file is the one of a run without a cache."""
    runs.check("plan.yaml")
    assert runs.judged("plan.yaml") == []
    change(runs)
    assert runs.judged("plan.yaml") == ["plan.yaml"]
    assert runs.check("plan.yaml", formats=("json",)) == runs.anew("plan.yaml", formats=("json",))


@pytest.mark.parametrize(
    "options",
    [
        ("--gpu", "a100-80gb"),
        ("--fail-above", "0.01"),
        ("--select", "MEM1"),
        ("--profile", "research"),
        ("--fail-on=never",),
    ],
)
def test_an_option_is_seen(runs: Runs, options: tuple[str, ...]) -> None:
    """What the command line changes is judged for itself, and kept beside the other."""
    runs.check("plan.yaml")
    assert runs.judged("plan.yaml", *options) == ["plan.yaml"]
    assert runs.judged("plan.yaml", *options) == []
    assert runs.judged("plan.yaml") == []


def test_the_day_is_seen(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A comment that counts until a day is looked at again on the next one."""
    runs.check("plan.yaml")
    day = "2999-01-02"

    def later() -> str:
        opener.note("today", "", day)
        return day

    monkeypatch.setattr(opener, "today", later)
    assert runs.judged("plan.yaml") == ["plan.yaml"]


def test_the_folder_and_the_version_are_seen(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes elsewhere, or under another memcheck, are judged for themselves."""
    runs.check("plan.yaml")
    monkeypatch.chdir(runs.plans.parent)
    assert runs.judged("repository/plan.yaml") == ["repository/plan.yaml"]
    monkeypatch.chdir(runs.plans)
    assert runs.judged("plan.yaml") == []
    monkeypatch.setattr(kept, "__version__", "999.0")
    assert runs.judged("plan.yaml") == ["plan.yaml"]


def test_a_change_of_the_package_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An edited, a new and a lost file of a checkout, and the record of an installed package."""
    package = tmp_path / "memcheck"
    (package / "inner").mkdir(parents=True)
    (package / "inner" / "a.py").write_text("a", encoding="utf-8")
    monkeypatch.setattr(kept, "PACKAGE", str(package))
    seen = [kept.identity()]
    (package / "inner" / "a.py").write_text("ab", encoding="utf-8")
    seen.append(kept.identity())
    (package / "b.json").write_text("", encoding="utf-8")
    seen.append(kept.identity())
    (package / "inner" / "a.py").unlink()
    seen.append(kept.identity())
    record = tmp_path / f"memcheck-{kept.__version__}.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text("one", encoding="utf-8")
    seen.append(kept.identity())
    record.write_text("three", encoding="utf-8")
    seen.append(kept.identity())
    assert len(set(seen)) == len(seen)
    assert kept.identity() == seen[-1]


def test_only_the_package_itself_is_looked_at() -> None:
    """The folder of the package, not the checkout or site-packages around it, whose files change for other reasons."""
    assert os.path.dirname(os.path.abspath(memcheck.__file__)) == kept.PACKAGE


ON_THE_WAY = ("plan", "catalog", "models", "job", "configs", "frameworks", "memory", "timing", "rules", "what_if")
PROBES = {"isfile", "isdir", "exists", "lexists", "islink", "realpath", "stat", "lstat", "scandir", "listdir", "access"}
OWN = {"catalog/names.py", "catalog/index.py", "configs/key_index.py", "plan/schema.py"}
"""Modules that look at memcheck's own files."""


def test_no_file_is_asked_about_in_silence(root: Path) -> None:
    """Between a plan's text and its verdict, files are asked about where the answers are taken down."""
    asked = re.compile(rf"\bos\.(?:path\.)?(?:{'|'.join(sorted(PROBES))})\(")
    files = [path for room in ON_THE_WAY for path in (root / "memcheck" / room).rglob("*.py")]
    found = [path for path in files if asked.search(path.read_text(encoding="utf-8"))]
    assert {path.relative_to(root / "memcheck").as_posix() for path in found} == OWN


def test_every_file_that_is_read_is_taken_down(runs: Runs) -> None:
    """What a plan brings in is in the notes, each with what was read."""
    from memcheck.edge.opener import digest
    from memcheck.judge import Gate, check_file

    data = Path("plan.yaml").read_bytes()
    opener.listen()
    check_file("plan.yaml", data, Gate())
    notes = {path: said for question, path, _, said in opener.heard() if question == "start"}
    assert {os.path.normpath(path): said for path, said in notes.items()} == {
        name: digest(Path(name).read_bytes()) for name in ("base.yaml", "model.json", "engine.json")
    }
