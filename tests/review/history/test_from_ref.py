"""``check --from-ref``: only what changed is judged, and nothing that changed is missed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memcheck.__main__ import main
from tests.cli.plans import write, write_over
from tests.review.history.repositories import commit, edit, git

Capture = pytest.CaptureFixture[str]
CONFIG = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with two plans that pass and one that does not, all committed."""
    write(tmp_path, "good")
    write(tmp_path, "other")
    write_over(tmp_path, "over")
    commit(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def judged(capsys: Capture, *arguments: str) -> tuple[int, list[str]]:
    """The exit code and the paths of the plans that were judged."""
    code = main(["check", "--format", "json", *arguments])
    out = capsys.readouterr().out
    return code, [plan["path"] for plan in json.loads(out)["plans"]] if out else []


def test_only_changed_plans_are_judged(folder: Path, capsys: Capture) -> None:
    """A plan that was already too large and did not change fails nobody's pull request; a changed one is judged."""
    edit(folder / "good.yaml", "micro_batch_size: 1", "micro_batch_size: 2")
    assert judged(capsys, "--from-ref", "HEAD") == (0, ["good.yaml"])
    edit(folder / "over.yaml", "micro_batch_size: 4", "micro_batch_size: 3")
    assert judged(capsys, "--from-ref=HEAD") == (1, ["good.yaml", "over.yaml"])


def test_new_plans_are_judged_even_when_git_ignores_them(folder: Path, capsys: Capture) -> None:
    """A plan that is not in the earlier commit is new: untracked, staged or ignored."""
    (folder / ".gitignore").write_text("ignored.yaml\n", encoding="utf-8")
    for name in ("untracked", "staged", "ignored"):
        write(folder, name)
    git(folder, "add", "staged.yaml")
    assert judged(capsys, "--from-ref", "HEAD") == (0, ["ignored.yaml", "staged.yaml", "untracked.yaml"])


def test_nothing_changed_is_clean(folder: Path, capsys: Capture) -> None:
    """When no plan changed the run passes and says how many it left out; no plan at all stays an error."""
    assert main(["check", "--from-ref", "HEAD"]) == 0
    assert "3 files unchanged" in capsys.readouterr().out
    (folder / "empty").mkdir()
    assert main(["check", "empty", "--from-ref", "HEAD"]) == 2


def test_changed_base_judges_what_extends_it(folder: Path, capsys: Capture) -> None:
    """A plan is judged when a plan that it extends changed, however many files lie between, or is gone."""
    (folder / "middle.yaml").write_text("memcheck: 1\nextends: good.yaml\nname: middle\n", encoding="utf-8")
    (folder / "top.yaml").write_text("memcheck: 1\nextends: middle.yaml\nname: top\n", encoding="utf-8")
    commit(folder)
    edit(folder / "good.yaml", "sequence_length: 2048", "sequence_length: 4096")
    assert judged(capsys, "--from-ref", "HEAD") == (0, ["good.yaml", "middle.yaml", "top.yaml"])
    (folder / "good.yaml").unlink()
    assert judged(capsys, "--from-ref", "HEAD") == (1, ["middle.yaml", "top.yaml"])


@pytest.mark.parametrize("written", ["../models/config.json", "../models"])
def test_changed_model_config_judges_its_plans(folder: Path, capsys: Capture, written: str) -> None:
    """A plan is judged when the model's configuration that it names changed, by file or by folder."""
    (folder / "models").mkdir()
    (folder / "plans").mkdir()
    (folder / "models" / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    plan = write(folder / "plans", "own")
    edit(plan, "model: llama-3.1-8b", f"model:\n  config: {written}")
    commit(folder)
    assert judged(capsys, "--from-ref", "HEAD") == (0, [])
    config = json.dumps({**CONFIG, "num_hidden_layers": 8})
    (folder / "models" / "config.json").write_text(config, encoding="utf-8")
    assert judged(capsys, "--from-ref", "HEAD") == (0, ["plans/own.yaml"])


def test_changed_configuration_judges_what_it_governs(folder: Path, capsys: Capture) -> None:
    """A stricter memcheck.toml judges the plans below it again; a pyproject.toml only if it configures memcheck."""
    (folder / "pyproject.toml").write_text('[project]\nname = "x"\n', encoding="utf-8")
    assert judged(capsys, "--from-ref", "HEAD") == (0, [])
    (folder / "memcheck.toml").write_text("fail-above = 0.01\nwarn-above = 0.01\n", encoding="utf-8")
    assert judged(capsys, "good.yaml", "--from-ref", "HEAD") == (1, ["good.yaml"])


def test_branch_means_its_merge_base(folder: Path, capsys: Capture) -> None:
    """What others changed on the branch meanwhile is not this branch's change; a commit is compared as it is."""
    git(folder, "switch", "--quiet", "--create", "topic")
    edit(folder / "good.yaml", "micro_batch_size: 1", "micro_batch_size: 2")
    commit(folder)
    git(folder, "switch", "--quiet", "main")
    edit(folder / "other.yaml", "micro_batch_size: 1", "micro_batch_size: 2")
    theirs = commit(folder)
    git(folder, "switch", "--quiet", "topic")
    assert judged(capsys, "--from-ref", "main") == (0, ["good.yaml"])
    assert judged(capsys, "--from-ref", theirs) == (0, ["good.yaml", "other.yaml"])


def clone(folder: Path, where: Path, *options: str) -> Path:
    """A clone of the last commit of a topic branch, as a pipeline would make it."""
    git(folder.parent, "clone", "--quiet", *options, f"file://{folder}", str(where))
    return where


def test_remote_branch_is_found_by_its_short_name(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pipeline's checkout `main` exists only as `origin/main`."""
    git(folder, "switch", "--quiet", "--create", "topic")
    edit(folder / "good.yaml", "micro_batch_size: 1", "micro_batch_size: 2")
    commit(folder)
    monkeypatch.chdir(clone(folder, tmp_path_factory.mktemp("clones") / "full", "--branch=topic"))
    assert judged(capsys, "--from-ref", "main") == (0, ["good.yaml"])


@pytest.mark.parametrize("extra", [(), ("--no-single-branch",)], ids=["ref missing", "ancestor missing"])
def test_shallow_clone_never_passes_silently(
    folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    extra: tuple[str, ...],
) -> None:
    """A clone without the history to compare with exits 2 and names the setting that fetches it."""
    git(folder, "switch", "--quiet", "--create", "topic")
    edit(folder / "good.yaml", "micro_batch_size: 1", "micro_batch_size: 2")
    commit(folder)
    git(folder, "switch", "--quiet", "main")
    commit(folder, "Go on")
    where = tmp_path_factory.mktemp("clones") / "shallow"
    monkeypatch.chdir(clone(folder, where, "--branch=topic", "--depth=1", *extra))
    assert main(["check", "--from-ref", "main"]) == 2
    error = capsys.readouterr().err
    assert "shallow clone" in error
    assert "fetch-depth: 0" in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from-ref", "no-such-branch"], "no ref 'no-such-branch' in this repository"),
        (["--from-ref=--upload-pack=x"], "is not a git ref"),
        (["--from-ref="], "is not a git ref"),
        (["-", "--from-ref", "HEAD"], "cannot be used with -"),
        (["../outside.yaml", "--from-ref", "HEAD"], "lies outside the repository"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_compared_exits_2(folder: Path, capsys: Capture, arguments: list[str], message: str) -> None:
    """A ref that is none, stdin and files of another repository are usage errors."""
    write(folder.parent, "outside")
    assert main(["check", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_outside_of_a_repository(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a repository there is nothing to compare with."""
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert main(["check", "--from-ref", "HEAD"]) == 2
    assert "not a git repository" in capsys.readouterr().err


def accept(folder: Path) -> None:
    """Configure a baseline, accept what is there, and commit."""
    (folder / "memcheck.toml").write_text('baseline = "accepted.json"\n', encoding="utf-8")
    assert main(["baseline", "write", "."]) == 0
    commit(folder)


def test_changed_baseline_judges_the_plans_it_names(folder: Path, capsys: Capture) -> None:
    """Whoever takes an entry out, or lowers its number, is told about the plan; other plans are left out."""
    accept(folder)
    capsys.readouterr()
    assert judged(capsys, "--from-ref", "HEAD") == (0, [])
    accepted = (folder / "accepted.json").read_text(encoding="utf-8")
    entry = next(line for line in accepted.splitlines() if "over.yaml" in line)
    (folder / "accepted.json").write_text(accepted.replace(entry, "").replace("[\n\n", "[\n"), encoding="utf-8")
    assert judged(capsys, "--from-ref", "HEAD") == (1, ["over.yaml"])
    number = json.loads(entry)["utilization"]
    (folder / "accepted.json").write_text(accepted.replace(str(number), "1.0001"), encoding="utf-8")
    assert judged(capsys, "--from-ref", "HEAD") == (1, ["over.yaml"])
    (folder / "accepted.json").write_text(accepted.replace('"memcheck": "', '"memcheck": "9.'), encoding="utf-8")
    assert judged(capsys, "--from-ref", "HEAD") == (0, [])


def test_a_new_or_unreadable_earlier_baseline(folder: Path, capsys: Capture) -> None:
    """A baseline that is new judges what it names; one that could not be read before judges everything."""
    commit(folder)
    assert main(["baseline", "write", ".", "--baseline", "new.json"]) == 0
    capsys.readouterr()
    assert judged(capsys, "--from-ref", "HEAD", "--baseline", "new.json") == (0, ["over.yaml"])
    assert judged(capsys, "--from-ref", "HEAD", "--baseline", "") == (0, [])
    assert judged(capsys, "--from-ref", "HEAD", "--baseline", "new.json", "--gpu", "b200") == (0, [])
    accepted = (folder / "new.json").read_text(encoding="utf-8")
    (folder / "new.json").write_text("{", encoding="utf-8")
    commit(folder)
    (folder / "new.json").write_text(accepted, encoding="utf-8")
    expected = ["good.yaml", "other.yaml", "over.yaml"]
    assert judged(capsys, "--from-ref", "HEAD", "--baseline", "new.json") == (0, expected)
