"""A whole pull request: two commits in a scratch repository, the event's file, every step of the Action under bash."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.action.api import GitHub, serve
from tests.action.composite import ActionRun
from tests.action.pull_request import PullRequest, annotations, masked
from tests.cli.plans import write, write_over
from tests.review.history.repositories import commit, edit, git

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parent / "golden"
MOST = 10
"""Errors, warnings and notices each that a runner shows per step; the rest is dropped without a word."""
KINDS = ("error", "warning", "notice")


@pytest.fixture
def pull_request(root: Path, tmp_path: Path) -> Iterator[PullRequest]:
    """A branch whose second commit makes one plan fail, adds one that fails and one that is warned of, and removes one."""
    github = GitHub()
    with serve(github):
        made = PullRequest(root, tmp_path, github)
        write(made.plans, "leaves")
        write_over(made.plans, "known")
        git(made.workspace, "switch", "--quiet", "main")
        commit(made.workspace, "Plan")
        git(made.workspace, "branch", "--quiet", "--force", "topic")
        git(made.workspace, "switch", "--quiet", "topic")
        made.grow()
        write_over(made.plans, "arrives")
        path = write(made.plans, "warned")
        edit(path, "zero_stage: 3\n", "tensor: 8\n  zero_stage: 3\n")
        (made.plans / "leaves.yaml").unlink()
        commit(made.workspace, "Grow")
        yield made


def added(done: ActionRun) -> str:
    """What the step added to the job summary."""
    return done.summary.removeprefix("Written before.\n")


def read(name: str) -> str:
    """A golden file. To renew one after a change of words, write what the failing test shows."""
    return (GOLDEN / name).read_text(encoding="utf-8")


def test_summary_and_comment_are_golden(pull_request: PullRequest) -> None:
    """The verdicts, the budget, the remedies' place and what moved: word for word, figures aside."""
    done = pull_request.run()
    assert done.exit_code == 1
    assert (done.outputs["plans"], done.outputs["failed"]) == ("5", "2")
    assert (done.outputs["changed"], done.outputs["regressions"]) == ("4", "1")
    (comment,) = pull_request.github.comments
    assert masked(comment["body"]) == read("comment.md")
    assert masked(added(done)) == read("summary.md")


def test_annotations_stand_on_the_lines_of_the_diff(pull_request: PullRequest) -> None:
    """Each annotation names a file of the branch and a line of it, one-based, and says so in its text, too."""
    done = pull_request.run()
    found = [each for kind in KINDS for each in annotations(done.log, kind)]
    assert len(found) == 3
    for each in found:
        place = re.match(
            r"::\w+ file=(plans/\w+\.yaml),line=(\d+),endLine=(\d+),col=(\d+),endColumn=(\d+),title=", each
        )
        assert place is not None, each
        lines = (pull_request.workspace / place[1]).read_text(encoding="utf-8").splitlines()
        line, end, first, last = (int(place[number]) for number in range(2, 6))
        assert 1 <= line == end <= len(lines)
        assert 1 <= first <= last <= len(lines[line - 1])
        assert f"{place[1]}:{line}:{first}: MEM" in each


def test_a_fork_is_judged_as_any_other(pull_request: PullRequest) -> None:
    """A token that may only read changes neither verdict nor annotations nor summary; there is no comment, and a notice."""
    own = pull_request.run()
    pull_request.github.read_only = True
    pull_request.github.comments.clear()
    fork = pull_request.run("fork_pull_request")
    assert fork.outputs["comment"] == "refused"
    assert pull_request.github.comments == []
    assert fork.exit_code == own.exit_code
    assert masked(added(fork)) == masked(added(own))
    for kind in ("error", "warning"):
        assert annotations(fork.log, kind) == annotations(own.log, kind)


@pytest.mark.parametrize("token", ["", "read only"])
def test_a_fork_whose_plans_fit_is_green(pull_request: PullRequest, token: str) -> None:
    """Without a token, or with one that may not write, the step passes, and the summary says what moved."""
    for name in ("arrives", "known"):
        (pull_request.plans / f"{name}.yaml").unlink()
    commit(pull_request.workspace, "Fit")
    pull_request.github.read_only = True
    done = pull_request.run("fork_pull_request", **({"token": ""} if token == "" else {}))
    assert (done.exit_code, done.outputs["exit-code"], done.outputs["comment"]) == (0, "0", "refused")
    assert annotations(done.log, "error") == []
    (notice,) = annotations(done.log, "notice")
    assert "No comment: " in notice
    assert "2 removed" in done.summary
    assert "1 changed" in done.summary


def test_annotations_fit_the_budget_of_a_step(pull_request: PullRequest) -> None:
    """Twelve plans of each kind, a limit that is exceeded and a comment that is refused: at most ten of each, none lost."""
    (pull_request.workspace / "memcheck.toml").write_text(
        'profile = "review"\nselect = ["MEM1", "MEM208", "MEM017"]\n', encoding="utf-8"
    )
    for number in range(12):
        write_over(pull_request.plans, f"over{number}")
        edit(write(pull_request.plans, f"idle{number}"), "zero_stage: 3\n", "tensor: 8\n  zero_stage: 3\n")
        edit(write(pull_request.plans, f"wordy{number}"), "zero_stage: 3\n", "pipeline: 1\n  zero_stage: 3\n")
    commit(pull_request.workspace, "Grow a lot")
    pull_request.github.read_only = True
    done = pull_request.run("fork_pull_request", fail_on_increase="1%")
    counts = {kind: len(annotations(done.log, kind)) for kind in KINDS}
    assert counts == {"error": MOST, "warning": 9, "notice": MOST}
    shown = sum(len([each for each in annotations(done.log, kind) if "file=" in each]) for kind in KINDS)
    (rest,) = [each for each in annotations(done.log, "notice") if "more finding" in each]
    left = re.search(r"::(\d+) more findings in the log and the job summary", rest)
    assert left is not None
    summary = json.loads(Path(done.outputs["report-json"]).read_text(encoding="utf-8"))["summary"]
    every = [summary[name] for name in ("errors", "warnings", "infos")]
    assert min(every) >= 12
    assert shown + int(left[1]) == sum(every)
    assert all(f"plans/over{number}.yaml" in done.summary for number in range(12))
