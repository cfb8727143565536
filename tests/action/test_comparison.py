"""The action on a pull request: comparison with the base in log and summary, and one comment kept up to date."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.action.api import TOKEN, GitHub, serve
from tests.action.pull_request import PullRequest, masked, notices
from tests.cli.plans import write, write_over
from tests.review.history.repositories import commit, edit, git

pytestmark = pytest.mark.slow

MARKER = re.compile(r"<!-- memcheck:[0-9a-f]{16} -->\n")

BODY = """\
<!-- memcheck:KEY -->
### ❌ memcheck: 1 plan fails now, 1 added, 1 changed

| | Plan | Before | After | Change | Of capacity |
|---|---|---:|---:|---:|---|
| ❌ | **over**<br><code>plans/over.yaml</code> |  | N GiB | added, fails now | N% |
| ✅ | **good**<br><code>plans/good.yaml</code><br><code>training.micro&#95;batch&#95;size 1 → 2</code> | N GiB | N GiB | **+N GiB** | N% → N%<br>+N points |

<details><summary><b>over</b></summary>

Errors: <code>MEM101 exceeds-capacity</code>

First remedy: <code>training.optimizer: adamw -&#62; {name: adamw, implementation: fused}; training.loss: standard -&#62; fused-linear; parallelism.zero&#95;stage: 0 -&#62; 3; training.offload: unset -&#62; {parameters: cpu} N% -&#62; N%; time +31%, least time</code>

</details>

<details><summary><b>good</b></summary>

- <code>training.micro&#95;batch&#95;size 1 → 2</code>

| Component | Before, GiB | After, GiB | Change |
|---|---:|---:|---:|
COMPONENTS

</details>

<sub>main (merge base COMMIT) → the working tree. 1 unchanged.</sub>

<sub>memcheck keeps this comment up to date.</sub>
"""


@pytest.fixture
def pull_request(root: Path, tmp_path: Path) -> Iterator[PullRequest]:
    github = GitHub()
    with serve(github):
        yield PullRequest(root, tmp_path, github)


def test_comment_golden(pull_request: PullRequest) -> None:
    """The comment names what fails now, what moved and by how much; the summary shows the same table."""
    pull_request.grow()
    write_over(pull_request.plans)
    done = pull_request.run()
    assert done.exit_code == 1
    (comment,) = pull_request.github.comments
    assert masked(comment["body"]) == BODY
    table = comment["body"].partition("\n\n")[2].partition("\n\n")[0]
    assert table in done.summary
    assert done.outputs["comment"] == "created"
    assert (done.outputs["changed"], done.outputs["regressions"]) == ("2", "1")
    compared = json.loads(Path(done.outputs["diff-json"]).read_text(encoding="utf-8"))
    assert done.outputs["largest-increase-bytes"] == str(compared["summary"]["largest_increase_bytes"])
    assert int(done.outputs["largest-increase-bytes"]) > 0


def test_one_comment_whatever_is_pushed(pull_request: PullRequest) -> None:
    """Pushes update the one comment, the same result asks for no change, and other comments stay as they are."""
    other = pull_request.github.add("Looks good to me")
    pull_request.grow()
    assert pull_request.run().outputs["comment"] == "created"
    assert pull_request.run().outputs["comment"] == "unchanged"
    edit(pull_request.plans / "good.yaml", "micro_batch_size: 2", "micro_batch_size: 3")
    assert pull_request.run().outputs["comment"] == "updated"
    assert pull_request.github.requests == ["GET", "POST", "GET", "GET", "PATCH"]
    assert len(pull_request.github.comments) == 2
    assert other["body"] == "Looks good to me"


def test_silent_when_nothing_moved(pull_request: PullRequest) -> None:
    """Without a change there is no comment; a comment from before says that its change is gone."""
    assert pull_request.run().outputs["comment"] == "none"
    assert pull_request.github.comments == []
    pull_request.grow()
    pull_request.run()
    edit(pull_request.plans / "good.yaml", "micro_batch_size: 2", "micro_batch_size: 1")
    assert pull_request.run().outputs["comment"] == "updated"
    assert "no plan's memory differs any more" in pull_request.github.comments[0]["body"]
    assert pull_request.run().outputs["comment"] == "unchanged"


def test_small_moves_are_no_reason_for_a_comment(pull_request: PullRequest) -> None:
    """Below `min-delta` nothing is said."""
    pull_request.grow()
    done = pull_request.run(min_delta="100GiB")
    assert (done.exit_code, done.outputs["comment"], done.outputs["changed"]) == (0, "none", "0")


def test_fork_without_rights_stays_green(pull_request: PullRequest) -> None:
    """A token that may only read gives a notice; the summary has the comparison and the step passes."""
    pull_request.github.read_only = True
    pull_request.grow()
    done = pull_request.run("fork_pull_request")
    assert done.exit_code == 0
    assert done.outputs["comment"] == "refused"
    (notice,) = notices(done.log)
    assert "403 Forbidden: Resource not accessible by integration" in notice
    assert "pull-requests: write" in notice
    assert "memcheck: 1 changed" in done.summary
    assert pull_request.github.comments == []


@pytest.mark.parametrize("token", ["", "wrong"])
def test_missing_token_stays_green(pull_request: PullRequest, token: str) -> None:
    """No token, or one that GitHub does not know, gives a notice and nothing else."""
    pull_request.grow()
    done = pull_request.run(token=token)
    assert (done.exit_code, done.outputs["comment"], len(notices(done.log))) == (0, "refused", 1)


def test_unreachable_api_stays_green(pull_request: PullRequest) -> None:
    """When nobody answers, the verdict on the plans counts."""
    pull_request.grow()
    pull_request.github.address = "http://127.0.0.1:9"
    done = pull_request.run()
    assert (done.exit_code, done.outputs["comment"]) == (0, "refused")
    assert "could not be asked" in notices(done.log)[0]


def test_comment_is_off_unless_asked_for(pull_request: PullRequest) -> None:
    """By default nobody is asked anything; with a base the summary still shows what moved."""
    pull_request.grow()
    done = pull_request.run(comment="off")
    assert (done.exit_code, done.outputs["comment"], done.outputs["changed"]) == (0, "off", "")
    done = pull_request.run(comment="off", base_ref="main")
    assert (done.outputs["comment"], done.outputs["changed"]) == ("off", "1")
    assert "memcheck: 1 changed" in done.summary
    assert pull_request.github.requests == []


def test_push_has_nothing_to_comment_on(pull_request: PullRequest) -> None:
    """On a push the comparison needs a base, and there is no pull request to write to."""
    pull_request.grow()
    assert pull_request.run("push").outputs["comment"] == "skipped"
    assert pull_request.run("push", base_ref="main").outputs["comment"] == "skipped"
    assert pull_request.github.requests == []


def test_growth_can_fail_the_step(pull_request: PullRequest) -> None:
    """With `fail-on-increase` a plan that fits and grew too much fails the step, with an error that says so."""
    pull_request.grow()
    assert pull_request.run(fail_on_increase="100GiB").exit_code == 0
    done = pull_request.run(fail_on_increase="1%")
    assert (done.exit_code, done.outputs["exit-code"]) == (1, "1")
    assert "A plan needs over 1%25 more memory than at main" in done.log


def test_shallow_checkout_is_an_error(pull_request: PullRequest, tmp_path: Path) -> None:
    """Without the base's history the step fails with exit code 2 and names the setting; nothing is posted."""
    pull_request.grow()
    commit(pull_request.workspace)
    whole = tmp_path / "whole"
    pull_request.workspace.rename(whole)
    git(tmp_path, "clone", "--quiet", "--depth=1", "--branch=topic", f"file://{whole}", str(pull_request.workspace))
    done = pull_request.run()
    assert (done.exit_code, done.outputs["exit-code"]) == (2, "2")
    (error,) = [line for line in done.log.splitlines() if line.startswith("::error ")]
    assert "fetch-depth: 0" in error
    assert pull_request.github.requests == []


def test_comment_is_found_on_a_later_page(pull_request: PullRequest) -> None:
    """A long discussion above it hides no comment."""
    for number in range(150):
        pull_request.github.add(f"Comment {number}")
    pull_request.grow()
    assert pull_request.run().outputs["comment"] == "created"
    assert pull_request.run().outputs["comment"] == "unchanged"
    assert len(pull_request.github.comments) == 151


def test_strangers_cannot_take_over_the_comment(pull_request: PullRequest) -> None:
    """A comment with the marker from somebody who may not write to the repository is not the action's."""
    pull_request.grow()
    pull_request.run()
    (own,) = pull_request.github.comments
    mark = MARKER.match(own["body"])
    assert mark is not None
    own["body"] = "deleted"
    stranger = pull_request.github.add(f"{mark[0]}mine")
    assert pull_request.run().outputs["comment"] == "created"
    assert stranger["body"].endswith("mine")


def test_folders_have_their_own_comments(pull_request: PullRequest) -> None:
    """Two runs in different working directories do not overwrite each other's comment."""
    pull_request.grow()
    pull_request.run()
    assert pull_request.run(working_directory="plans", paths=".").outputs["comment"] == "created"
    assert len(pull_request.github.comments) == 2


def test_large_comparison_fits_a_comment(pull_request: PullRequest) -> None:
    """Hundreds of plans that moved make a comment that GitHub takes, with the middle left out."""
    for number in range(320):
        write(pull_request.plans, f"{'a-plan-with-a-long-name-' * 3}{number}", sequence_length="512")
    done = pull_request.run()
    assert done.outputs["comment"] == "created"
    body = pull_request.github.comments[0]["body"]
    assert 60_000 < len(body) <= 65_536
    assert " more …" in body
    assert body.rstrip().endswith("up to date.</sub>")


def test_text_too_long_for_any_reason_is_cut_in_the_middle(root: Path) -> None:
    """Whatever text comes, the comment keeps its beginning and its end within GitHub's limit."""
    code = "import comment; print(comment.body('<!-- m -->', 'x' * 99 + '\\n' + ('line\\n' * 20000) + 'the end\\n'), end='')"
    done = subprocess.run([sys.executable, "-c", code], cwd=root / "action", capture_output=True, text=True, check=True)
    assert 65_000 < len(done.stdout) <= 65_536
    assert done.stdout.startswith("<!-- m -->\nxxx")
    assert "too long for a comment" in done.stdout
    assert "the end\n" in done.stdout


def test_plans_cannot_speak_through_the_comparison(pull_request: PullRequest) -> None:
    """A plan whose name looks like a workflow command is printed where the runner obeys none."""
    edit(pull_request.plans / "good.yaml", "name: good", 'name: "::error::forged"')
    pull_request.grow()
    log = pull_request.run().log
    assert "\n\\x3a:error::forged  plans/good.yaml: changed" in log
    token = None
    for line in log.splitlines():
        if token is None and line.startswith("::stop-commands::"):
            token = line.removeprefix("::stop-commands::")
        elif token is not None and line == f"::{token}::":
            token = None
        elif token is None:
            assert not line.startswith("::error::")


def test_token_reaches_nothing_but_the_comment(pull_request: PullRequest) -> None:
    """The token is in no log, summary, output or comment."""
    pull_request.grow()
    done = pull_request.run()
    assert TOKEN not in done.log + done.summary + str(done.outputs) + str(pull_request.github.comments)


def test_unknown_mode_is_a_named_error(pull_request: PullRequest) -> None:
    """A value of `comment` that means nothing fails with the input's name before anything runs."""
    done = pull_request.run(comment="always")
    assert done.exit_code == 2
    assert "the input 'comment' is not one of off, update" in done.log
