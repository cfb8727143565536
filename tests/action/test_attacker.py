"""The Action on a checkout that wants its own code to run: nothing of it does, in any step."""

from __future__ import annotations

import re
import shutil
import sys
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

    def run(self, ready: Steps, environ: dict[str, str]) -> ActionRun:
        """Run the steps that are not ready; the log and the exit code are what a workflow sees."""
        return run_action(self.root, self.workspace, self.temp, {"paths": "plans"}, environ, ready)

    def ran(self) -> str:
        """The modules of the pull request that ran."""
        return self.mark.read_text(encoding="utf-8") if self.mark.exists() else ""


@pytest.fixture
def attack(root: Path, tmp_path: Path) -> Attack:
    return Attack(root, tmp_path)


@pytest.mark.slow
def test_installing_runs_no_module_of_the_checkout(attack: Attack) -> None:
    """The installer makes its environment and starts pip without a look into the working directory."""
    nowhere = (attack.temp / "no-index").as_uri()
    done = attack.run(PYTHON, {"PIP_INDEX_URL": nowhere})
    assert attack.ran() == ""
    assert done.exit_code != 0
    assert list(attack.temp.glob("memcheck-venv/*")), done.log
    assert "ERROR" in done.log, "pip itself has to have been asked"


@pytest.mark.slow
def test_environment_cannot_point_the_installer_at_the_checkout(attack: Attack) -> None:
    """Variables that give Python or pip a folder or a configuration of the checkout are dropped before anything runs."""
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


def test_checking_runs_no_module_of_the_checkout(attack: Attack) -> None:
    """Neither the working directory nor PYTHONPATH gives the check a module of the checkout."""
    done = attack.run(INSTALLED, {"PYTHONPATH": str(attack.workspace), "PYTHONHOME": ""})
    assert attack.ran() == ""
    assert done.exit_code == 0, done.log
    assert done.outputs["plans"] == "1"


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.usefixtures("package_index")
def test_whole_action_on_an_attackers_checkout(attack: Attack) -> None:
    """All steps together: installed from hashed files alone, checked, and nothing of the checkout ran."""
    done = attack.run(PYTHON, {})
    assert done.exit_code == 0, done.log
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
            assert re.fullmatch(r"[\w.-]+==[\w.]+( ; python_full_version [<>=]+ '[\d.]+')?( +--hash=sha256:[0-9a-f]{64})+", line.strip())
