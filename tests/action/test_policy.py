"""The Action's inputs that take the policy out of the pull request's hands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.action.api import GitHub, serve
from tests.action.pull_request import PullRequest, annotations
from tests.cli.plans import write_over
from tests.review.history.repositories import commit, edit


@pytest.fixture
def pull_request(root: Path, tmp_path: Path) -> Iterator[PullRequest]:
    """A pull request with a plan that does not fit."""
    github = GitHub()
    with serve(github):
        made = PullRequest(root, tmp_path, github)
        write_over(made.plans)
        yield made


@pytest.mark.slow
def test_comments_hide_nothing_without_suppressions(pull_request: PullRequest) -> None:
    """`suppressions: false` fails a plan that passes by its comment, in the check and in the comparison."""
    edit(pull_request.plans / "over.yaml", "memcheck: 1", "memcheck: 1  # memcheck: ignore[MEM101] borrowed")
    commit(pull_request.workspace)
    hidden = pull_request.run()
    assert (hidden.exit_code, hidden.outputs["regressions"]) == (0, "0")
    done = pull_request.run(suppressions="false")
    assert (done.exit_code, done.outputs["regressions"]) == (1, "1")


def test_suppressions_is_true_or_false(pull_request: PullRequest) -> None:
    """Anything else is an error with a name, not a gate that is open."""
    done = pull_request.run(suppressions="off")
    assert done.exit_code == 2
    assert any("'suppressions' is not one of true, false" in line for line in annotations(done.log, "error"))


@pytest.mark.slow
def test_configuration_of_the_base_counts(pull_request: PullRequest) -> None:
    """`config-from-ref` fails a plan whose pull request ignores the rule, in the check and in the comparison."""
    (pull_request.workspace / "memcheck.toml").write_text('ignore = ["MEM101"]\n', encoding="utf-8")
    commit(pull_request.workspace)
    loose = pull_request.run()
    assert (loose.exit_code, loose.outputs["regressions"]) == (0, "0")
    done = pull_request.run(config_from_ref="main")
    assert (done.exit_code, done.outputs["regressions"]) == (1, "1")


@pytest.mark.slow
@pytest.mark.parametrize("ref", ["gone", "--exit-zero", "$(touch ran)"])
def test_ref_is_a_ref_and_nothing_else(pull_request: PullRequest, ref: str) -> None:
    """A ref that is none fails the step; it is neither an option nor a command."""
    done = pull_request.run(config_from_ref=ref)
    assert done.exit_code == 2
    assert not (pull_request.workspace / "ran").exists()
