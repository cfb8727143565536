"""``--config-from-ref``: a pull request is judged by the configuration and the baseline of the branch that it goes to."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.inside import memcheck
from tests.cli.plans import write, write_over
from tests.review.history.repositories import commit, edit, git

CONFIGURATION = 'baseline = "accepted.json"\n'
CHECK = ("check", "--config-from-ref", "main", "plans")
LOOSENED = "in the working tree's own words the plan has to pass, or the test shows nothing"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A pull request that adds a plan four times too large: `main` has a configuration, an empty baseline and a plan."""
    folder = tmp_path / "checkout"
    (folder / "plans").mkdir(parents=True)
    write(folder / "plans")
    (folder / "memcheck.toml").write_text(CONFIGURATION, encoding="utf-8")
    memcheck(folder, "baseline", "write", "--baseline", "accepted.json", "plans")
    commit(folder)
    git(folder, "switch", "--quiet", "--create", "topic")
    write_over(folder / "plans")
    return folder


def ignore(folder: Path) -> None:
    """The configuration ignores the rule."""
    (folder / "memcheck.toml").write_text('ignore = ["MEM101"]\n' + CONFIGURATION, encoding="utf-8")


def accept(folder: Path) -> None:
    """The baseline accepts the finding."""
    memcheck(folder, "baseline", "write", "plans")


def comment(folder: Path) -> None:
    """A comment hides the finding."""
    edit(folder / "plans" / "over.yaml", "memcheck: 1", "memcheck: 1  # memcheck: ignore[MEM101] borrowed")


def nearer(folder: Path) -> None:
    """A configuration beside the plans goes before that of the root."""
    (folder / "plans" / "pyproject.toml").write_text('[tool.memcheck]\nignore = ["MEM1"]\n', encoding="utf-8")


def excuse(folder: Path) -> None:
    """The configuration lets no finding fail the run."""
    (folder / "memcheck.toml").write_text('fail-on = "never"\n', encoding="utf-8")


@pytest.mark.parametrize("loosen", [ignore, accept, comment, nearer, excuse])
@pytest.mark.parametrize("committed", [False, True])
def test_pull_request_cannot_loosen_its_gate(checkout: Path, loosen: object, committed: bool) -> None:
    """A plan that passes by what the pull request changed fails by the policy of its base."""
    assert callable(loosen)
    loosen(checkout)
    if committed:
        commit(checkout)
    assert memcheck(checkout, "check", "plans").returncode == 0, LOOSENED
    done = memcheck(checkout, *CHECK, "--no-suppressions")
    assert done.returncode == 1, done.stderr
    assert "MEM101" in done.stdout


@pytest.mark.parametrize("loosen", [ignore, accept, comment])
def test_comparison_is_judged_by_the_policy(checkout: Path, loosen: object) -> None:
    """diff calls the new plan a regression, whatever the pull request says of itself."""
    assert callable(loosen)
    loosen(checkout)
    arguments = ("diff", "--from-ref", "main", "--fail-on-regression")
    assert memcheck(checkout, *arguments).returncode == 0, LOOSENED
    done = memcheck(checkout, *arguments, "--config-from-ref", "main", "--no-suppressions")
    assert done.returncode == 1, done.stderr


def test_comments_decide_no_comparison(checkout: Path) -> None:
    """diff takes a plan that passes by its comment for one that fails, with the one option alone."""
    comment(checkout)
    arguments = ("diff", "--from-ref", "main", "--fail-on-regression")
    assert memcheck(checkout, *arguments).returncode == 0, LOOSENED
    assert memcheck(checkout, *arguments, "--no-suppressions").returncode == 1


def test_both_sides_have_the_policy(checkout: Path) -> None:
    """What the base accepts now is accepted of the earlier state, too, from wherever diff is run."""
    accept(checkout)
    (checkout / "memcheck.toml").write_text(CONFIGURATION + 'per-file-ignores = {"*/good.yaml" = ["MEM1"]}\n')
    commit(checkout)
    git(checkout, "branch", "policy")
    git(checkout, "rm", "--quiet", "accepted.json", "memcheck.toml")
    commit(checkout)
    edit(checkout / "plans" / "over.yaml", "micro_batch_size: 4", "micro_batch_size: 3")
    plain = memcheck(checkout, "diff", "--from-ref", "HEAD", "--format=json")
    assert [status(plain.stdout, side) for side in ("before", "after")] == ["failed", "failed"], LOOSENED
    for folder in (checkout, checkout / "plans"):
        done = memcheck(folder, "diff", "--from-ref", "HEAD", "--format=json", "--config-from-ref", "policy")
        assert [status(done.stdout, side) for side in ("before", "after")] == ["passed", "passed"], done.stderr


def test_named_configuration_governs_both_sides(checkout: Path) -> None:
    """With --config the earlier state has the file's baseline and its ignores of single files, too."""
    accept(checkout)
    (checkout / "memcheck.toml").rename(checkout / "ci.toml")
    commit(checkout)
    edit(checkout / "plans" / "over.yaml", "micro_batch_size: 4", "micro_batch_size: 3")
    done = memcheck(checkout, "diff", "--from-ref", "HEAD", "--format=json", "--config", "ci.toml")
    assert [status(done.stdout, side) for side in ("before", "after")] == ["passed", "passed"], done.stderr


def status(document: str, side: str) -> str:
    """The verdict of the one plan that moved."""
    (change,) = json.loads(document)["changes"]
    found = change[side]["status"]
    assert isinstance(found, str)
    return found


@pytest.mark.slow
def test_policy_is_that_of_the_tip(checkout: Path) -> None:
    """A rule that the base has taken up since the branch left it counts for the branch."""
    (checkout / "plans" / "over.yaml").unlink()
    commit(checkout)
    git(checkout, "switch", "--quiet", "main")
    (checkout / "memcheck.toml").write_text('fail-above = "1%"\n', encoding="utf-8")
    commit(checkout)
    git(checkout, "switch", "--quiet", "topic")
    assert memcheck(checkout, "check", "plans").returncode == 0, LOOSENED
    assert memcheck(checkout, *CHECK).returncode == 1


def test_ref_has_no_configuration(checkout: Path) -> None:
    """Without a configuration at the ref the defaults count, not the file of the working tree."""
    commit(checkout)
    git(checkout, "switch", "--quiet", "main")
    git(checkout, "rm", "--quiet", "memcheck.toml")
    commit(checkout)
    git(checkout, "switch", "--quiet", "topic")
    ignore(checkout)
    done = memcheck(checkout, *CHECK)
    assert done.returncode == 1, done.stderr
    shown = memcheck(checkout, *CHECK, "--show-settings", "plans/over.yaml")
    assert "no configuration" in shown.stdout


def test_settings_say_where_they_come_from(checkout: Path) -> None:
    """--show-settings names the ref and its commit."""
    ignore(checkout)
    done = memcheck(checkout, *CHECK, "--show-settings", "plans/over.yaml")
    assert f"configured by memcheck.toml of main ({git(checkout, 'rev-parse', 'main')[:8]})" in done.stdout
    assert "MEM101" not in done.stdout


@pytest.mark.parametrize("ref", ["gone", "", "--output=x", "main:plans"])
def test_missing_ref_is_an_error(checkout: Path, ref: str) -> None:
    """A ref that git does not know ends with exit code 2: never with the configuration of the working tree."""
    for command in (["check"], ["diff", "--from-ref", "main"]):
        done = memcheck(checkout, *command, f"--config-from-ref={ref}")
        assert done.returncode == 2
        assert "ref" in done.stderr


def test_outside_of_a_repository(tmp_path: Path) -> None:
    """Without a repository the option names itself in the error."""
    write(tmp_path)
    done = memcheck(tmp_path, "check", "--config-from-ref=main", ".")
    assert done.returncode == 2
    assert "--config-from-ref works inside a git repository" in done.stderr


@pytest.mark.parametrize("option", ["--config", "--baseline"])
def test_named_files_are_read_from_the_ref(checkout: Path, option: str) -> None:
    """A configuration or baseline that the command line names is that of the ref, and an error if it has none."""
    accept(checkout)
    ignore(checkout)
    name = {"--config": "memcheck.toml", "--baseline": "accepted.json"}[option]
    assert memcheck(checkout, *CHECK, f"{option}={name}").returncode == 1
    (checkout / name).rename(checkout / f"new-{name}")
    done = memcheck(checkout, *CHECK, f"{option}=new-{name}")
    assert done.returncode == 2
    assert "there is none in main" in done.stderr


def test_broken_configuration_of_the_branch_stops_nothing(checkout: Path) -> None:
    """What the pull request's own configuration says is not read at all."""
    (checkout / "memcheck.toml").write_text("no TOML", encoding="utf-8")
    assert memcheck(checkout, "check", "plans").returncode == 2
    assert memcheck(checkout, *CHECK).returncode == 1


def test_changed_configuration_still_counts_as_a_change(checkout: Path) -> None:
    """With --from-ref a plan below a configuration that the branch changed is judged, by the policy of the base."""
    commit(checkout)
    arguments = ("check", "--from-ref", "HEAD", "--config-from-ref", "main", "plans")
    assert memcheck(checkout, *arguments).returncode == 0
    ignore(checkout)
    assert memcheck(checkout, *arguments).returncode == 1


@pytest.mark.skipif(os.name == "nt", reason="Windows has other links")
def test_folders_are_those_of_the_ref(checkout: Path) -> None:
    """A folder that is a link at the ref has the configuration it leads to, whatever the branch makes of the folder."""
    git(checkout, "stash", "--quiet", "--include-untracked")
    git(checkout, "switch", "--quiet", "main")
    (checkout / "team").mkdir()
    (checkout / "team" / "memcheck.toml").write_text('fail-above = "1%"\n', encoding="utf-8")
    os.symlink("team", checkout / "jobs")
    commit(checkout)
    git(checkout, "switch", "--quiet", "topic")
    (checkout / "jobs").mkdir()
    write(checkout / "jobs")
    assert memcheck(checkout, "check", "jobs").returncode == 0, LOOSENED
    assert memcheck(checkout, "check", "--config-from-ref", "main", "jobs").returncode == 1


@pytest.mark.skipif(os.name == "nt", reason="Windows has other links")
def test_folder_made_a_link_keeps_its_configuration(checkout: Path) -> None:
    """A branch that moves a folder and leaves a link is judged by what the folder's own name had at the ref."""
    git(checkout, "stash", "--quiet", "--include-untracked")
    git(checkout, "switch", "--quiet", "main")
    (checkout / "plans" / "memcheck.toml").write_text('fail-above = "1%"\n', encoding="utf-8")
    commit(checkout)
    git(checkout, "switch", "--quiet", "--create", "moved")
    (checkout / "plans" / "memcheck.toml").unlink()
    (checkout / "plans").rename(checkout / "drafts")
    os.symlink("drafts", checkout / "plans")
    commit(checkout)
    assert memcheck(checkout, "check", "plans").returncode == 0, LOOSENED
    assert memcheck(checkout, "check", "--config-from-ref", "main", "plans").returncode == 1
