"""``memcheck diff``: two files, two folders, two reports, or a git ref; what moved, and when it fails."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest

from memcheck.__main__ import main
from tests.cli.plans import write, write_broken, write_over
from tests.review.history.repositories import commit, edit, git

Capture = pytest.CaptureFixture[str]


def diff(capsys: Capture, *arguments: str, code: int = 0) -> dict[str, object]:
    """The JSON comparison; the exit code has to be ``code``."""
    assert main(["diff", "--format", "json", *arguments]) == code
    return json.loads(capsys.readouterr().out)


def kinds(comparison: dict[str, object]) -> dict[str, str]:
    """Plan name to what happened to it."""
    return {change["name"]: change["kind"] for change in comparison["changes"]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with two plans, committed, as the working directory."""
    write(tmp_path, "good")
    write(tmp_path, "other", sequence_length="4096")
    commit(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_two_files(tmp_path: Path, capsys: Capture) -> None:
    """Two plan files are compared whatever they are called: the device memory and every component that moved."""
    old, new = write(tmp_path, "old"), write(tmp_path, "new", micro_batch_size="2")
    (change,) = diff(capsys, str(old), str(new))["changes"]
    before, after = change["before"], change["after"]
    assert change["delta_bytes"] == after["needed_bytes"] - before["needed_bytes"] > 0
    assert sum(change["components_delta_bytes"].values()) == change["delta_bytes"]
    assert change["delta_points"] == pytest.approx(100 * (after["utilization"] - before["utilization"]), abs=1e-3)
    assert change["verdict"] == "same"


def test_two_folders(tmp_path: Path, capsys: Capture) -> None:
    """Plans of two folders are paired by their path inside; what came, went or was renamed is named so."""
    old, new = tmp_path / "old", tmp_path / "new"
    for each in (old, new):
        each.mkdir()
        write(each, "same")
    write(old, "grows")
    write(new, "grows", micro_batch_size="2")
    write(old, "goes", sequence_length="1024")
    write(new, "comes", sequence_length="512")
    write(old, "moves", sequence_length="4096")
    (new / "deep").mkdir()
    write(new / "deep", "moves", sequence_length="4096")
    comparison = diff(capsys, str(old), str(new))
    assert kinds(comparison) == {"grows": "changed", "goes": "removed", "comes": "added", "moves": "renamed"}
    assert comparison["summary"]["unchanged"] == 1


def test_two_reports(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two JSON reports of `check` say the same as the plans they were made of."""
    monkeypatch.chdir(tmp_path)
    for name, batch in (("a", "1"), ("b", "2")):
        write(tmp_path, "plan", micro_batch_size=batch)
        main(["check", "plan.yaml", "--format", f"json={name}.json"])
        (tmp_path / f"{name}.yaml").write_text((tmp_path / "plan.yaml").read_text())
    (reported,) = diff(capsys, "a.json", "b.json")["changes"]
    (judged,) = diff(capsys, "a.yaml", "b.yaml")["changes"]
    assert reported["components_delta_bytes"] == judged["components_delta_bytes"]
    assert reported["delta_bytes"] == judged["delta_bytes"] > 0


def test_names_go_before_numbers_in_a_file(tmp_path: Path, capsys: Capture) -> None:
    """A document inserted at the top of a file is the new one; those below it are still themselves."""
    first, second = (write(tmp_path, name).read_text() for name in ("first", "second"))
    third = write(tmp_path, "third", micro_batch_size="2").read_text()
    (tmp_path / "old.yaml").write_text(f"{first}---\n{second}")
    (tmp_path / "new.yaml").write_text(f"{third}---\n{first}---\n{second}")
    comparison = diff(capsys, str(tmp_path / "old.yaml"), str(tmp_path / "new.yaml"))
    assert kinds(comparison) == {"third": "added"}


def test_working_tree_against_a_ref(folder: Path, capsys: Capture) -> None:
    """Changed, new, deleted and moved plans against a commit; untouched ones are only counted."""
    write(folder, "gone", sequence_length="1024")
    write(folder, "moved", sequence_length="512")
    commit(folder)
    edit(folder / "good.yaml", "micro_batch_size: 1", "micro_batch_size: 2")
    (folder / "gone.yaml").unlink()
    (folder / "plans").mkdir()
    git(folder, "mv", "moved.yaml", "plans/moved.yaml")
    write_over(folder, "new")
    comparison = diff(capsys, "--from-ref", "HEAD")
    assert kinds(comparison) == {"new": "added", "good": "changed", "gone": "removed", "moved": "renamed"}
    assert comparison["summary"]["unchanged"] == 1
    assert comparison["summary"]["fails_now"] == 1
    paths = {change["name"]: change["before"] and change["before"]["path"] for change in comparison["changes"]}
    assert paths == {"new": None, "good": "good.yaml", "gone": "gone.yaml", "moved": "moved.yaml"}
    assert kinds(diff(capsys, "--from-ref", "HEAD", "good.yaml", "gone.yaml")) == {"good": "changed", "gone": "removed"}


def test_earlier_plan_is_read_with_its_own_files(folder: Path, capsys: Capture) -> None:
    """What an earlier plan extends and which model config it names come from the earlier commit, too."""
    dimensions = {"vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 8}
    config = {"model_type": "llama", "num_key_value_heads": 8, "tie_word_embeddings": False, **dimensions}
    for path in ("models", "plans"):
        (folder / path).mkdir()
    (folder / "models" / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 4}))
    base = write(folder / "models", "base")
    edit(base, "model: llama-3.1-8b", "model: {config: config.json}")
    plan = folder / "plans" / "own.yaml"
    plan.write_text("memcheck: 1\nname: own\nextends: ../models/base.yaml\n")
    commit(folder)
    before = diff(capsys, "models/base.yaml", "plans/own.yaml")["changes"]
    assert before == []
    (folder / "models" / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 8}))
    edit(base, "micro_batch_size: 1", "micro_batch_size: 2")
    (change,) = diff(capsys, "--from-ref", "HEAD", "plans")["changes"]
    assert change["before"]["status"] == change["after"]["status"] == "passed"
    parameters = change["before"]["components_bytes"]["parameters"], change["after"]["components_bytes"]["parameters"]
    assert parameters[1] > parameters[0] > 0
    assert change["components_delta_bytes"]["activations"] > 0


@pytest.mark.slow
def test_earlier_configuration_judges_earlier_plans(folder: Path, capsys: Capture) -> None:
    """A threshold that a branch tightens shows as plans that fail now; an unusable earlier one gives way to today's."""
    (folder / "memcheck.toml").write_text("fail-above = 0.9\n")
    commit(folder)
    (folder / "memcheck.toml").write_text("fail-above = 0.01\nwarn-above = 0.01\n")
    comparison = diff(capsys, "--from-ref", "HEAD", "good.yaml")
    assert comparison["summary"]["fails_now"] == 1
    assert comparison["changes"][0]["delta_bytes"] == 0
    (folder / "memcheck.toml").write_text('required-version = ">=9999"\n')
    commit(folder)
    (folder / "memcheck.toml").write_text("fail-above = 0.9\n")
    assert diff(capsys, "--from-ref", "HEAD", "good.yaml")["changes"] == []


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ((), 0),
        (("--fail-on-increase", "100GiB"), 0),
        (("--fail-on-increase", "0.001GiB"), 1),
        (("--fail-on-increase", "500%"), 0),
        (("--fail-on-increase", "1%"), 1),
        (("--fail-on-increase", "100GiB", "--fail-on-increase", "1%"), 1),
        (("--fail-on-increase", "1%", "--min-delta", "100GiB"), 1),
        (("--fail-on-regression",), 0),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_thresholds(folder: Path, capsys: Capture, options: tuple[str, ...], code: int) -> None:
    """Growth beyond an amount or a share fails the run, also when it is too small to show; growth alone does not."""
    edit(folder / "good.yaml", "micro_batch_size: 1", "micro_batch_size: 2")
    diff(capsys, "--from-ref", "HEAD", *options, code=code)


@pytest.mark.parametrize(("limit", "code"), [("0GiB", 0), ("0%", 0)])
def test_shrinking_is_no_increase(folder: Path, capsys: Capture, limit: str, code: int) -> None:
    """Less memory, or as much as before, is never beyond a limit."""
    edit(folder / "good.yaml", "sequence_length: 2048", "sequence_length: 1024")
    diff(capsys, "--from-ref", "HEAD", "--fail-on-increase", limit, code=code)


def test_plan_that_can_no_longer_be_judged_is_a_regression(folder: Path, capsys: Capture) -> None:
    """A plan that was estimated and is broken now may have grown: any threshold fails."""
    write_broken(folder, "good")
    comparison = diff(capsys, "--from-ref", "HEAD", "--fail-on-increase", "100GiB", code=1)
    assert comparison["changes"][0]["verdict"] == "fails-now"
    assert comparison["changes"][0]["delta_bytes"] is None
    diff(capsys, "--from-ref", "HEAD", "--fail-on-regression", code=1)


def test_small_changes_can_be_left_out(folder: Path, capsys: Capture) -> None:
    """Below the minimum a plan is counted, not shown; a change of verdict is always shown."""
    edit(folder / "good.yaml", "micro_batch_size: 1", "micro_batch_size: 2")
    comparison = diff(capsys, "--from-ref", "HEAD", "--min-delta", "100GiB")
    assert (comparison["changes"], comparison["summary"]["minor"]) == ([], 1)
    write_over(folder, "good")
    assert len(diff(capsys, "--from-ref", "HEAD", "--min-delta", "1000GiB")["changes"]) == 1


def test_nothing_moved_is_quiet(folder: Path, capsys: Capture) -> None:
    """A new comment moves nothing: no block, no Markdown, and with --quiet not a word."""
    edit(folder / "good.yaml", "memcheck: 1", "# only words\nmemcheck: 1")
    assert main(["diff", "--from-ref", "HEAD", "--format=markdown"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["diff", "--from-ref", "HEAD", "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["diff", "--from-ref", "HEAD"]) == 0
    assert capsys.readouterr().out.startswith("nothing moved, 2 unchanged")


def test_shallow_clone_is_an_error(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the history to compare with there is no comparison, and the setting that fetches it is named."""
    commit(folder, "Go on")
    where = tmp_path_factory.mktemp("clones") / "shallow"
    git(folder, "clone", "--quiet", "--depth=1", f"file://{folder}", str(where))
    monkeypatch.chdir(where)
    assert main(["diff", "--from-ref", "HEAD~1"]) == 2
    assert "fetch-depth: 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["good.yaml"], "takes OLD and NEW, and got 1 paths"),
        (["good.yaml", "."], "is a folder and good.yaml is none"),
        (["good.yaml", "missing.yaml"], "cannot read missing.yaml"),
        (["missing.json", "missing.json"], "cannot read missing.json"),
        (["bad.json", "bad.json"], "is no JSON report"),
        (["deep.json", "deep.json"], "is no JSON report"),
        (["inf.json", "inf.json"], "is no JSON report"),
        (["empty", "empty"], "nothing to compare"),
        (["--from-ref", "HEAD", "missing.yaml"], "cannot read missing.yaml"),
        (["--from-ref", "HEAD", "-"], "cannot be used with -"),
        (["--from-ref", "HEAD", "--min-delta", "5"], "is no amount of memory"),
        (["--from-ref", "HEAD", "--fail-on-increase=-1GiB"], "is no amount of memory"),
        (["--from-ref", "HEAD", "--format", "sarif"], "unknown format 'sarif'; known: full, markdown, json"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_command_lines_exit_2(folder: Path, capsys: Capture, arguments: list[str], message: str) -> None:
    """What cannot be compared is a usage error that says why."""
    (folder / "bad.json").write_text('{"plans": []}')
    (folder / "deep.json").write_text("[" * 200_000)
    main(["check", "good.yaml", "--format", "json=inf.json"])
    report = (folder / "inf.json").read_text()
    (folder / "inf.json").write_text(re.sub(r'("activations": )\d+', r"\g<1>1e400", report))
    (folder / "empty").mkdir()
    assert main(["diff", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_document_follows_its_schema(folder: Path, root: Path, capsys: Capture) -> None:
    """The JSON comparison is valid against the schema that `memcheck schema diff` prints."""
    assert main(["schema", "diff"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema == json.loads((root / "schemas" / "diff.schema.json").read_text())
    validator = jsonschema.Draft7Validator(schema)
    write_broken(folder, "good")
    (folder / "other.yaml").unlink()
    write(folder, "new")
    comparison = diff(capsys, "--from-ref", "HEAD")
    validator.validate(comparison)
    assert {change["kind"] for change in comparison["changes"]} == {"changed", "removed", "added"}
    assert not validator.is_valid({**comparison, "diff": 2})
    del comparison["changes"][0]["verdict"]
    assert not validator.is_valid(comparison)


def verdicts(comparison: dict[str, object]) -> dict[str, tuple[str | None, str | None, str]]:
    """Plan name to its status before and after, and what became of it."""
    return {
        change["name"]: (
            change["before"] and change["before"]["status"],
            change["after"] and change["after"]["status"],
            change["verdict"],
        )
        for change in comparison["changes"]
    }


@pytest.mark.slow
def test_both_states_are_held_against_the_baseline_of_their_time(folder: Path, capsys: Capture) -> None:
    """A plan that was accepted and is accepted did not move; accepting one is a change of its verdict, and so is the end."""
    write_over(folder, "over")
    (folder / "memcheck.toml").write_text('baseline = "accepted.json"\n', encoding="utf-8")
    assert main(["baseline", "write", "."]) == 0
    accepted = commit(folder)
    capsys.readouterr()
    edit(folder / "over.yaml", "micro_batch_size: 4", "micro_batch_size: 3")
    assert verdicts(diff(capsys, "--from-ref", "HEAD")) == {"over": ("passed", "passed", "same")}
    (folder / "accepted.json").write_text('{"baseline": 1, "findings": []}', encoding="utf-8")
    dropped = diff(capsys, "--from-ref", "HEAD", "--fail-on-regression", code=1)
    assert verdicts(dropped) == {"over": ("passed", "failed", "fails-now")}
    commit(folder)
    git(folder, "checkout", "--quiet", accepted, "--", "accepted.json")
    assert verdicts(diff(capsys, "--from-ref", "HEAD")) == {"over": ("failed", "passed", "passes-now")}


def test_another_gpu_and_other_rules(folder: Path, capsys: Capture) -> None:
    """Both states are judged on the GPU and by the rules that are asked for."""
    edit(folder / "good.yaml", "sequence_length: 2048", "sequence_length: 4096")
    own = diff(capsys, "--from-ref", "HEAD")["changes"][0]
    other = diff(capsys, "--from-ref", "HEAD", "--gpu", "rtx-4090")["changes"][0]
    assert own["after"]["capacity_bytes"] > other["after"]["capacity_bytes"] == other["before"]["capacity_bytes"]
    assert other["after"]["status"] == "failed"
    spared = diff(capsys, "--from-ref", "HEAD", "--gpu", "rtx-4090", "--ignore", "MEM1")["changes"][0]
    assert spared["after"]["status"] == "passed"
    chosen = diff(capsys, "--from-ref", "HEAD", "--gpu", "rtx-4090", "--select", "MEM2", "--profile", "review")
    assert chosen["changes"][0]["after"]["status"] == "passed"


def test_a_report_is_not_judged_again(folder: Path, capsys: Capture) -> None:
    """Options that judge have no effect on a report, so that they are refused."""
    assert main(["check", "--format", "json=report.json", "--exit-zero"]) == 0
    capsys.readouterr()
    for option in (["--gpu", "h200"], ["--no-suppressions"], ["--config-from-ref", "HEAD"]):
        assert main(["diff", "report.json", "report.json", *option]) == 2
        err = capsys.readouterr().err
        assert "a report cannot be checked again" in err
        assert option[0] in err
