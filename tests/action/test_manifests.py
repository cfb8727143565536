"""What other tools say about the action, the workflows and their pins; none of them needs the network."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(sys.executable).parent

SCHEMAS = {
    "action.yml": "vendor.github-actions",
    ".github/workflows/ci.yml": "vendor.github-workflows",
    ".github/workflows/plans.yml": "vendor.github-workflows",
    ".github/workflows/release.yml": "vendor.github-workflows",
    ".github/workflows/site.yml": "vendor.github-workflows",
    ".github/dependabot.yml": "vendor.dependabot",
}


@pytest.mark.slow
@pytest.mark.parametrize("schema", sorted(set(SCHEMAS.values())))
def test_manifests_follow_their_schema(root: Path, schema: str) -> None:
    """GitHub's own files are valid against the published schemas that check-jsonschema carries."""
    files = [root / file for file, its in SCHEMAS.items() if its == schema]
    command = [SCRIPTS / "check-jsonschema", "--builtin-schema", schema, *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_workflow_is_checked(root: Path) -> None:
    """A new workflow file has to be added to the table above."""
    workflows = {f".github/workflows/{path.name}" for path in (root / ".github" / "workflows").iterdir()}
    assert workflows <= SCHEMAS.keys()


@pytest.mark.slow
def test_zizmor_has_nothing_to_say(root: Path) -> None:
    """The action and the workflows pass zizmor's pedantic persona."""
    command = [SCRIPTS / "zizmor", "--offline", "--pedantic", "--quiet", root / "action.yml", root / ".github"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", [name for name in SCHEMAS if "dependabot" not in name])
def test_uses_are_pinned(root: Path, file: str) -> None:
    """Every action from elsewhere is pinned to a full commit with its version beside it."""
    for line in (root / file).read_text(encoding="utf-8").splitlines():
        if (used := line.strip().removeprefix("- ")).startswith("uses:") and "uses: ./" not in used:
            assert re.fullmatch(r"uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", used), line
