"""A policy that holds: what a pull request cannot talk itself out of, through the Action's steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.action.api import GitHub, serve
from tests.action.pull_request import PullRequest
from tests.cli.plans import write_over
from tests.review.history.repositories import commit, edit, git

pytestmark = pytest.mark.slow

LOCKED = "[policy]\nlocked = true\n"


@pytest.fixture
def pull_request(root: Path, tmp_path: Path) -> Iterator[PullRequest]:
    """A pull request to a branch whose configuration is locked."""
    github = GitHub()
    with serve(github):
        made = PullRequest(root, tmp_path, github)
        git(made.workspace, "switch", "--quiet", "main")
        (made.workspace / "memcheck.toml").write_text(LOCKED, encoding="utf-8")
        commit(made.workspace)
        git(made.workspace, "switch", "--quiet", "topic")
        git(made.workspace, "merge", "--quiet", "main")
        yield made


def raise_limit(made: PullRequest) -> None:
    """The plan may use all of the GPU."""
    edit(made.plans / "good.yaml", "training:", "policy: {fail_above: 100%}\ntraining:")


def drop_overhead(made: PullRequest) -> None:
    """The plan says that nothing comes on top."""
    edit(made.plans / "good.yaml", "training:", "policy: {overhead: 0%}\ntraining:")


def ignore(made: PullRequest) -> None:
    """A comment hides that a plan does not fit."""
    edit(write_over(made.plans), "memcheck: 1", "memcheck: 1  # memcheck: ignore[MEM101] borrowed")


def edit_configuration(made: PullRequest) -> None:
    """The pull request unlocks the configuration, and ignores the rule."""
    write_over(made.plans)
    (made.workspace / "memcheck.toml").write_text('ignore = ["MEM101"]\n', encoding="utf-8")


def nearer_configuration(made: PullRequest) -> None:
    """The pull request brings a configuration that is nearer to the plans."""
    write_over(made.plans)
    (made.plans / "memcheck.toml").write_text('ignore = ["MEM101"]\n', encoding="utf-8")


CHANGES = [raise_limit, drop_overhead, ignore, edit_configuration, nearer_configuration]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_pull_request_cannot_unlock_itself(pull_request: PullRequest, change: Callable[[PullRequest], None]) -> None:
    """Each way to soften the gate fails the step, which passes without it (below)."""
    change(pull_request)
    commit(pull_request.workspace)
    assert pull_request.run(config_from_ref="main").exit_code == 1


def test_a_stricter_plan_passes(pull_request: PullRequest) -> None:
    """A locked limit is a bound: a plan that asks for less of the GPU is judged by its own; and unchanged, it passes."""
    assert pull_request.run(config_from_ref="main").exit_code == 0
    edit(pull_request.plans / "good.yaml", "training:", "policy: {fail_above: 88%}\ntraining:")
    commit(pull_request.workspace)
    assert pull_request.run(config_from_ref="main").exit_code == 0
