"""The Action on a checkout that wants its own code to run: nothing of it does, in any step."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from glob import glob
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.action.composite import ActionRun, Steps, run_action

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FITS = "llama-3.1-8b-fsdp-8xh100.yaml"
PYTHON: Steps = {"python": {"python-path": sys.executable}}
INSTALLED: Steps = {**PYTHON, "install": {"python": sys.executable}}
MODULES = (
    "venv.py",
    "venv/__main__.py",
    "pip/__main__.py",
    "ensurepip/__main__.py",
    "hatchling/build.py",
    "sitecustomize.py",
    "usercustomize.py",
    "comparison.py",
    "comment.py",
    "wildcards.py",
    "json.py",
    "shlex.py",
    "yaml.py",
    "click.py",
    "memcheck/__init__.py",
    "memcheck/__main__.py",
)
"""What Python would import from the working directory, or from a folder that its environment names."""


class Attack:
    """A pull request whose every module leaves a mark where it runs."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.workspace, self.temp = root, folder / "workspace", folder / "temp"
        self.mark = folder / "ran"
        self.temp.mkdir()
        for name in MODULES:
            path = self.workspace / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"open({str(self.mark)!r}, 'a').write({name!r} + '\\n')\n", encoding="utf-8")
        (self.workspace / "pip" / "__init__.py").write_text("", encoding="utf-8")
        (self.workspace / "plans").mkdir()
        shutil.copy(root / "examples" / FITS, self.workspace / "plans")

    def run(self, ready: Steps, environ: dict[str, str], **given: str) -> ActionRun:
        """Run the steps that are not ready; the log and the exit code are what a workflow sees."""
        return run_action(self.root, self.workspace, self.temp, {"paths": "plans", **given}, environ, ready)

    def ran(self) -> str:
        """The modules of the pull request that ran."""
        return self.mark.read_text(encoding="utf-8") if self.mark.exists() else ""


@pytest.fixture
def attack(root: Path, tmp_path: Path) -> Attack:
    return Attack(root, tmp_path)


@pytest.mark.slow
def test_installing_runs_no_module_of_the_checkout(attack: Attack) -> None:
    """The installer makes its environment and starts pip without a look into the working directory.

    Variables that give Python or pip a folder or a configuration of the checkout are dropped before anything runs.
    """
    target = attack.workspace / "target"
    (attack.workspace / "pip.conf").write_text(f"[install]\ntarget = {target}\n", encoding="utf-8")
    environ = {
        "PYTHONPATH": str(attack.workspace),
        "PYTHONSTARTUP": str(attack.workspace / "venv.py"),
        "PIP_CONFIG_FILE": str(attack.workspace / "pip.conf"),
        "PIP_REQUIREMENT": str(attack.workspace / "no-such-requirements.txt"),
        "PIP_INDEX_URL": (attack.temp / "no-index").as_uri(),
    }
    done = attack.run(PYTHON, environ)
    assert attack.ran() == ""
    assert "no-such-requirements" not in done.log
    assert "target" not in done.log
    assert done.exit_code != 0
    assert list(attack.temp.glob("memcheck-venv/*")), done.log
    assert "ERROR" in done.log, "pip itself has to have been asked"


@pytest.mark.slow
def test_checking_runs_no_module_of_the_checkout(attack: Attack) -> None:
    """Neither the working directory nor PYTHONPATH gives the check a module of the checkout."""
    done = attack.run(INSTALLED, {"PYTHONPATH": str(attack.workspace), "PYTHONHOME": ""})
    assert attack.ran() == ""
    assert done.exit_code == 0, done.log
    assert done.outputs["plans"] == "1"


@pytest.mark.slow
@pytest.mark.parametrize("target", [".", "..", "/"])
def test_wildcards_go_through_no_link(attack: Attack, target: str) -> None:
    """Committed links in a circle, or to the whole disk, keep no pattern busy and add no file to what it means."""
    for name in ("a", "b", "c"):
        (attack.workspace / "plans" / name).symlink_to(target)
    for paths in ("plans/**/*.yaml", "plans/*/*/*/*.yaml plans/*.yaml", "**"):
        done = attack.run(INSTALLED, {}, paths=paths)
        assert FITS in done.log
        assert done.outputs["plans"] == "1" or paths == "**"


@pytest.mark.slow
def test_a_file_called_like_stdin_is_a_file(attack: Attack) -> None:
    """A committed file with the name that stands for stdin is judged, and nothing waits for input."""
    shutil.copy(attack.workspace / "plans" / FITS, attack.workspace / "-")
    waiting, never = os.pipe()
    before = os.dup(0)
    os.dup2(waiting, 0)
    try:
        done = attack.run(INSTALLED, {}, paths="-* plans/*.yaml")
    finally:
        os.dup2(before, 0)
        for descriptor in (waiting, never, before):
            os.close(descriptor)
    assert done.exit_code == 0, done.log
    assert done.outputs["plans"] == "2"


@pytest.mark.slow
@pytest.mark.parametrize("paths", [".", "secret.yaml", "*.yaml"])
def test_working_directory_is_no_way_out(attack: Attack, tmp_path: Path, paths: str) -> None:
    """A folder to run in that a pull request has made a link to elsewhere is refused, and nothing there is read."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "secret.yaml").write_text("memcheck: 1\nmodel: a-secret\n", encoding="utf-8")
    (attack.workspace / "linked").symlink_to("../elsewhere")
    done = attack.run(INSTALLED, {}, paths=paths, **{"working-directory": "linked"})
    assert done.exit_code == 2
    assert "a link that leads out of the workspace" in done.log
    assert "a-secret" not in done.log + done.summary
    (attack.workspace / "inside").symlink_to("plans")
    assert attack.run(INSTALLED, {}, paths="*.yaml", **{"working-directory": "inside"}).exit_code == 0


@pytest.mark.parametrize(
    "pattern",
    ["*", "**", "a/**", "a/*", "*/*.yaml", "**/*.yaml", "**/b/*", "a/**/d.yaml", ".*", ".h/*", "**/.h/*", "a/../*.yaml",
     "?.yaml", "[cd].yaml", "a/*/", "none*", "no/such/*", "c.yaml", "a//*"],
)  # fmt: skip
def test_patterns_mean_what_glob_says(pattern: str, tmp_path: Path) -> None:
    """Where no link is in the way, the files of a pattern are those of Python's own glob."""
    for name in ("a/b/d.yaml", "a/d.yaml", "c.yaml", "d.yaml", ".h/e.yaml", "a/.h/f.yaml", "a/b/b/g.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    expected = {os.path.normpath(each) for each in glob(pattern, root_dir=tmp_path, recursive=True)} or {pattern}
    assert {os.path.normpath(each) for each in meant(pattern, tmp_path)} == expected


def meant(pattern: str, folder: Path) -> list[str]:
    """The paths that the Action takes a pattern for."""
    program = "import sys, wildcards; print(*wildcards.expanded(*sys.argv[1:]), sep='\\n')"
    line = [sys.executable, "-c", program, pattern, str(folder)]
    action = Path(__file__).parents[2] / "action"
    return subprocess.run(line, cwd=action, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["**/*.yaml", "**/**/*.yaml"])
def test_folders_deeper_than_the_stack_are_searched(
    pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pull request may nest folders as deep as paths can be: the plan at the end is found, with no traceback."""
    monkeypatch.chdir(tmp_path)
    for _ in range(1500):
        os.mkdir("d")
        os.chdir("d")
    Path("plan.yaml").touch()
    try:
        assert meant(pattern, tmp_path) == ["d/" * 1500 + "plan.yaml"]
    finally:  # pytest's own cleaning would overflow the stack
        subprocess.run(["rm", "-r", "d"], cwd=tmp_path, check=True)


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.usefixtures("package_index")
def test_whole_action_on_an_attackers_checkout(attack: Attack) -> None:
    """All steps together: the memcheck of the action's own ref is installed with hashed files alone, and checks with it.

    Nothing of the checkout ran.
    """
    done = attack.run(PYTHON, {})
    assert done.exit_code == 0, done.log
    assert done.outputs["plans"] == "1"
    assert list(attack.temp.glob("memcheck-venv/*/memcheck*"))
    assert attack.ran() == ""


def pins(root: Path) -> dict[str, list[str]]:
    """The lines of the Action's requirements by name: version and marker, with hashes behind."""
    text = (root / "action" / "requirements.txt").read_text(encoding="utf-8").replace("\\\n", " ")
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            found.setdefault(line.partition("==")[0].lower(), []).append(line)
    return found


def test_requirements_cover_the_dependencies(root: Path) -> None:
    """Each dependency of the package and of its build is pinned to a version that pyproject.toml allows."""
    table = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    pinned = pins(root)
    for written in (*table["project"]["dependencies"], *table["build-system"]["requires"]):
        wanted = Requirement(written)
        lines = pinned.get(wanted.name.lower(), [])
        assert lines, f"{wanted.name} is not pinned: run action/lock.sh"
        for line in lines:
            version = line.partition("==")[2].split()[0]
            assert wanted.specifier.contains(version), f"{line.split()[0]} is not {written}: run action/lock.sh"


def test_requirements_are_hashed(root: Path) -> None:
    """Every pin carries hashes of its files, and no line takes anything from elsewhere."""
    for lines in pins(root).values():
        for line in lines:
            assert re.fullmatch(
                r"[\w.-]+==[\w.]+( ; python_full_version [<>=]+ '[\d.]+')?( +--hash=sha256:[0-9a-f]{64})+", line.strip()
            )
