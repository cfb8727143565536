"""The pre-commit hooks: their manifest, the files they look at, and a real run in a scratch repository."""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

FITS = "llama-3.1-8b-fsdp-8xh100.yaml"
FAILS = "llama-3.1-8b-tp4-a100-40gb.yaml"

# pre-commit accepts a misspelt key without a word, so the known ones are listed here (pre-commit's clientlib.py).
KNOWN_KEYS = {
    *("id", "alias", "name", "description", "entry", "language", "language_version", "additional_dependencies", "args"),
    *("files", "exclude", "types", "types_or", "exclude_types", "always_run", "pass_filenames", "require_serial"),
    *("fail_fast", "verbose", "stages", "log_file", "minimum_pre_commit_version"),
}


@pytest.fixture(scope="session")
def hooks(root: Path) -> dict[str, dict[str, Any]]:
    manifest = yaml.safe_load((root / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    return {hook["id"]: hook for hook in manifest}


@pytest.mark.slow
def test_manifest_is_valid(root: Path, hooks: dict[str, dict[str, Any]]) -> None:
    """pre-commit accepts the manifest, and every key is one it knows."""
    command = [sys.executable, "-m", "pre_commit", "validate-manifest", str(root / ".pre-commit-hooks.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {key for hook in hooks.values() for key in hook} <= KNOWN_KEYS


def test_hooks_run_serially(hooks: dict[str, dict[str, Any]]) -> None:
    """Both hooks run as one process, so that a run prints one summary in the files' own order."""
    assert set(hooks) == {"memcheck", "memcheck-all"}
    assert all(hook["require_serial"] for hook in hooks.values())


@pytest.mark.parametrize(
    "path", ["plan.yaml", "plans/a.yml", "PLAN.YAML", "plans/8b.memcheck.yaml", ".hidden/plan.yaml"]
)
def test_files_pattern_matches_yaml(hooks: dict[str, dict[str, Any]], path: str) -> None:
    """The hook is offered every YAML file."""
    assert re.search(hooks["memcheck"]["files"], path)


@pytest.mark.parametrize("path", ["plan.yaml.j2", "plan.json", "yaml", "plans/yml", "plan.yamllint", "plan_yaml"])
def test_files_pattern_leaves_the_rest(hooks: dict[str, dict[str, Any]], path: str) -> None:
    """The hook is not started for a commit without YAML files."""
    assert not re.search(hooks["memcheck"]["files"], path)


class ScratchRepository:
    """A git repository that uses the hooks of this checkout, as it stands: pre-commit installs them once."""

    def __init__(self, root: Path, files: list[Path], folder: Path) -> None:
        self.folder = folder / "repository"
        self.folder.mkdir()
        self.environ = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("GIT_", "PRE_COMMIT"))},
            "PRE_COMMIT_HOME": str(folder / "pre-commit"),
            "GIT_CONFIG_GLOBAL": os.devnull,
        }
        self.git("init", "--quiet")
        hooks = [{"id": "memcheck"}, {"id": "memcheck-all"}]
        source = folder / "source"
        repos = [{"repo": str(source), "rev": self.committed(root, files, source), "hooks": hooks}]
        self.config = folder / "config.yaml"
        self.config.write_text(yaml.safe_dump({"repos": repos}), encoding="utf-8")

    def committed(self, root: Path, files: list[Path], source: Path) -> str:
        """The commit of a repository with the files of this checkout as they are now."""
        for file in files:
            place = source / file.relative_to(root)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, place, follow_symlinks=False)
        who = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        for arguments in (("init", "--quiet"), ("add", "--all"), (*who, "commit", "--quiet", "--message", "now")):
            self.git(*arguments, folder=source)
        return self.git("rev-parse", "HEAD", folder=source).strip()

    def git(self, *arguments: str, folder: Path | None = None) -> str:
        """Run git in the scratch repository, or in another."""
        command = ["git", *arguments]
        return subprocess.run(
            command, cwd=folder or self.folder, env=self.environ, check=True, capture_output=True, text=True
        ).stdout

    def add(self, name: str, text: str) -> None:
        """Write and stage a file."""
        (self.folder / name).write_text(text, encoding="utf-8")
        self.git("add", "--", name)

    def add_many(self, texts: dict[str, str]) -> None:
        """Write and stage files."""
        for name, text in texts.items():
            (self.folder / name).write_text(text, encoding="utf-8")
        self.git("add", "--all")

    def remove(self, name: str) -> None:
        """Take a file out of the index and the folder."""
        self.git("rm", "--quiet", "--force", "--", name)

    def try_hooks(self, *hooks: str) -> subprocess.CompletedProcess[str]:
        """Run one hook, or all of them, over all files."""
        run = ["run", *hooks, "--config", str(self.config), "--all-files", "--verbose"]
        command = [sys.executable, "-m", "pre_commit", *run]
        return subprocess.run(
            command, cwd=self.folder, env=self.environ, capture_output=True, text=True, encoding="utf-8", check=False
        )


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.usefixtures("package_index")
def test_hooks_judge_a_scratch_repository(root: Path, tracked_files: list[Path], tmp_path: Path) -> None:
    """Installed by pre-commit, the hooks pass over YAML that is no plan, fail on a plan that does not fit, and pass."""
    repository = ScratchRepository(root, tracked_files, tmp_path)
    repository.add("values.yaml", "replicas: 3\nimage: {{ not even yaml\n")

    done = repository.try_hooks("memcheck")
    assert done.returncode == 0, done.stdout

    repository.add_many({f"values-{number}.yaml": "replicas: 3\n" for number in range(287)})
    fits = (root / "examples" / FITS).read_text(encoding="utf-8")
    repository.add_many({f"plan-{number}.yaml": fits for number in range(12)})
    done = repository.try_hooks("memcheck")
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("checked 12 plans: 12 passed, 0 failed") == done.stdout.count("checked ") == 1

    for number in range(12):
        repository.remove(f"plan-{number}.yaml")
    repository.add(FAILS, (root / "examples" / FAILS).read_text(encoding="utf-8"))
    repository.add("--config=off.yaml", "fail-on = 'never'\n")
    done = repository.try_hooks()
    assert done.returncode == 1, done.stdout
    assert done.stdout.count("exit code: 1") == 2
    assert done.stdout.count("MEM101") >= 2
    assert "values.yaml" not in done.stdout

    repository.remove(FAILS)
    repository.remove("--config=off.yaml")
    repository.add(FITS, (root / "examples" / FITS).read_text(encoding="utf-8"))
    done = repository.try_hooks()
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("Passed") == 2


@pytest.mark.slow
def test_plans_are_found_among_much_other_yaml(root: Path, tmp_path: Path) -> None:
    """288 files that are no plans cost the hook's one process less than the twelve plans do: under twice their time."""
    names = [f"plan-{number}.yaml" for number in range(12)]
    text = (root / "examples" / FITS).read_text(encoding="utf-8")
    for name in names:
        (tmp_path / name).write_text(text, encoding="utf-8")
    others = [f"values-{number}.yaml" for number in range(288)]
    for name in others:
        (tmp_path / name).write_text("replicas: 3\nimage:\n  tag: v1\n" * 20 + "{{ not even yaml\n", encoding="utf-8")
    environ = {**os.environ, "PYTHONPATH": str(root)}

    def spent() -> float:
        times = os.times()
        return times.children_user + times.children_system

    def seconds(*arguments: str) -> float:
        start = spent()
        command = [sys.executable, "-m", "memcheck", "hook", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True)
        assert "checked 12 plans: 12 passed, 0 failed" in done.stdout
        return spent() - start

    pairs = [(seconds(*names, *others), seconds(*names)) for _ in range(3)]
    assert statistics.median(everything / plans for everything, plans in pairs) < 2
