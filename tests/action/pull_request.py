"""A pull request in a scratch repository: its branch, its event, the Action's steps, and GitHub behind a real API."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.action.api import TOKEN, GitHub
from tests.action.composite import ActionRun, run_action
from tests.cli.plans import write
from tests.review.history.repositories import commit, edit, git

READY = {"python": {"python-path": sys.executable}, "install": {"python": sys.executable}}
NUMBER = r"-?[\d,]+\.\d+"


class PullRequest:
    """A checked-out pull request: a branch from main, and GitHub."""

    def __init__(self, root: Path, folder: Path, github: GitHub) -> None:
        self.action, self.github = root, github
        self.workspace, self.temp = folder / "workspace", folder / "temp"
        self.temp.mkdir()
        self.plans = self.workspace / "plans"
        self.plans.mkdir(parents=True)
        write(self.plans, "good")
        write(self.plans, "same", sequence_length="1024")
        commit(self.workspace)
        git(self.workspace, "switch", "--quiet", "--create", "topic")

    def run(self, event: str = "pull_request", token: str = TOKEN, **given: str) -> ActionRun:
        """Run the action with `comment: update`; inputs are given with underscores."""
        inputs = {"paths": "plans", "comment": "update"} | {name.replace("_", "-"): v for name, v in given.items()}
        payload = Path(__file__).parent / "events" / f"{event}.json"
        environ = {
            "GITHUB_API_URL": self.github.address,
            "GITHUB_EVENT_NAME": "push" if event == "push" else "pull_request",
            "GITHUB_EVENT_PATH": str(payload),
            "GITHUB_REPOSITORY": "acme/training",
            "GITHUB_WORKFLOW": "Plans",
            "GITHUB_JOB": "memcheck",
        }
        if event != "push":
            environ["GITHUB_BASE_REF"] = "main"
        return run_action(self.action, self.workspace, self.temp, inputs, environ, READY, token)

    def grow(self) -> None:
        """Change one plan."""
        edit(self.plans / "good.yaml", "micro_batch_size: 1", "micro_batch_size: 2")


def masked(body: str) -> str:
    """A comment or summary without what the memory model may move: figures, components, remedies, the peak's place."""
    body = re.sub(r"memcheck:[0-9a-f]{16}", "memcheck:KEY", body)
    body = re.sub(r"merge base [0-9a-f]{8}", "merge base COMMIT", body)
    body = re.sub(rf"(?:\| [\w ]+ \| {NUMBER} \| {NUMBER} \| [+-]{NUMBER} \|\n)+", "COMPONENTS\n", body)
    body = re.sub(rf"(?:\| [\w ]+ \| {NUMBER} \| {NUMBER}% \|\n)+", "COMPONENTS\n", body)
    body = re.sub(r"(?:\| <code>.*</code> \| [\d.,]+% → [\d.,]+% \| .* \|\n)+", "REMEDIES\n", body)
    body = re.sub(rf"({NUMBER}% \|) [a-z][^|]* \|$", r"\1 PEAK |", body, flags=re.MULTILINE)
    body = re.sub(r"^Peak: .*$", "Peak: ...", body, flags=re.MULTILINE)
    body = re.sub(r"; the peak is in .*$", "; the peak is ...", body, flags=re.MULTILINE)
    body = re.sub(rf"^Help: .*{NUMBER}% -&#62; {NUMBER}%$", "Help: REMEDY", body, flags=re.MULTILINE)
    return re.sub(NUMBER, "N", body)


def annotations(log: str, kind: str) -> list[str]:
    """The annotations of one kind that the runner would show: not what is printed while it obeys no commands."""
    found, token = [], None
    for line in log.splitlines():
        if token is None and line.startswith("::stop-commands::"):
            token = line.removeprefix("::stop-commands::")
        elif token is not None and line == f"::{token}::":
            token = None
        elif token is None and line.startswith(f"::{kind} "):
            found.append(line)
    return found


def notices(log: str) -> list[str]:
    return [line for line in log.splitlines() if line.startswith("::notice ")]
