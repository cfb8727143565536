"""File names of a commit are never options of the hook."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from memcheck.cli.plain import ENTRY, check_line
from memcheck.errors import UsageError

FAILS = "llama-3.1-8b-tp4-a100-40gb.yaml"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["--"]),
        (["a.yaml"], ["--", "a.yaml"]),
        (["--quiet", "a.yaml", "b.yml"], ["--quiet", "--", "a.yaml", "b.yml"]),
        (["--config=off.yaml", "a.yaml"], ["--", "--config=off.yaml", "a.yaml"]),
        (["a.yaml", "--exit-zero"], ["--", "a.yaml", "--exit-zero"]),
        (["--fail-above=85%", "--format=json=/x/y.YAML"], ["--fail-above=85%", "--", "--format=json=/x/y.YAML"]),
        (["--config", "strict.toml", "-q.yml"], ["--config", "strict.toml", "--", "-q.yml"]),
        (["--quiet", "--", "--exit-zero", "a.yaml"], ["--quiet", "--", "--exit-zero", "a.yaml"]),
        (["a.yaml", "--"], ["--", "a.yaml", "--"]),
        (["--", "-"], ["--", os.path.join(".", "-")]),
    ],
)
def test_options_end_before_the_first_file_name(arguments: list[str], expected: list[str]) -> None:
    """What ends like a YAML file is a file, and so is everything behind it; options before it still count."""
    assert check_line(arguments) == [*ENTRY, *expected]


def test_an_option_that_is_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook whose own pattern hands over other files fails where one of them is named like an option."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "--exit-zero").touch()
    with pytest.raises(UsageError, match="is an option of the hook and the name of a file"):
        check_line(["--exit-zero"])


def run_entry(root: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the hook's entry as pre-commit does: its words, the arguments and every committed name."""
    manifest = yaml.safe_load((root / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    program, *entry = shlex.split(next(hook["entry"] for hook in manifest if hook["id"] == "memcheck"))
    assert program == "memcheck"
    names = sorted(os.listdir(folder))
    return subprocess.run(
        [sys.executable, "-m", "memcheck", *entry, *arguments, *names],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["--config=off.yaml", "--exit-zero --config=off.yaml", "--show-settings=off.yaml"])
def test_a_committed_name_does_not_switch_the_gate_off(root: Path, tmp_path: Path, name: str) -> None:
    """A plan that does not fit fails, beside a file whose name and content would turn every rule off."""
    (tmp_path / name).write_text("fail-on = 'never'\n", encoding="utf-8")
    (tmp_path / "off.yaml").write_text("fail-on = 'never'\n", encoding="utf-8")
    (tmp_path / "plan.yaml").write_bytes((root / "examples" / FAILS).read_bytes())
    done = run_entry(root, tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "MEM101" in done.stdout


def test_a_committed_name_overwrites_nothing(root: Path, tmp_path: Path) -> None:
    """A file called like a report is judged as a file; what it names stays as it was."""
    victim = tmp_path / "victim.yaml"
    folder = tmp_path / "checkout"
    folder.mkdir()
    victim.write_text("mine: 1\n", encoding="utf-8")
    (folder / "--format=json=..").mkdir()  # `--format=json=../victim.yaml` is a path below it
    name = os.path.join("--format=json=..", "victim.yaml")
    (folder / name).write_text("a: 1\n", encoding="utf-8")
    done = run_entry(root, folder, name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert victim.read_text(encoding="utf-8") == "mine: 1\n"


@pytest.mark.slow
def test_the_users_args_still_count(root: Path, tmp_path: Path) -> None:
    """An option of `args:` changes the verdict as it does for `check`."""
    (tmp_path / "plan.yaml").write_bytes((root / "examples" / FAILS).read_bytes())
    assert run_entry(root, tmp_path).returncode == 1
    assert run_entry(root, tmp_path, "--exit-zero").returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("args", [[], ["--quiet"], ["--fail-above=90%", "--"]])
def test_pre_commit_fails_a_hostile_commit(root: Path, tmp_path: Path, args: list[str]) -> None:
    """pre-commit itself, with the manifest's hook run from this checkout, does not say Passed."""
    folder, programs = tmp_path / "repository", tmp_path / "bin"
    folder.mkdir()
    programs.mkdir()
    program = programs / "memcheck"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m memcheck "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    manifest = yaml.safe_load((root / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    hook = {**next(each for each in manifest if each["id"] == "memcheck"), "language": "system", "args": args}
    config = {"repos": [{"repo": "local", "hooks": [hook]}]}
    (folder / ".pre-commit-config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    victim = folder / "victim.yaml"
    victim.write_text("mine: 1\n", encoding="utf-8")
    for name in ("--config=off.yaml", "--exit-zero.yaml", "--format=json=victim.yaml", "off.yaml"):
        (folder / name).write_text("fail-on = 'never'\n", encoding="utf-8")
    (folder / "plan.yaml").write_bytes((root / "examples" / FAILS).read_bytes())
    environ = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("GIT_", "PRE_COMMIT"))},
        "PRE_COMMIT_HOME": str(tmp_path / "pre-commit"),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "PATH": os.pathsep.join([str(programs), os.environ["PATH"]]),
        "PYTHONPATH": str(root),
    }
    for command in (["git", "init", "--quiet"], ["git", "add", "--all"]):
        subprocess.run(command, cwd=folder, env=environ, check=True, capture_output=True)
    command = [sys.executable, "-m", "pre_commit", "run", "--all-files"]
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, encoding="utf-8", check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "MEM101" in done.stdout
    assert victim.read_text(encoding="utf-8") == "mine: 1\n"
