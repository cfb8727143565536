"""The package's modules are found the short way, and are still what their sources say."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from memcheck.edge.json_text import read_own_json
from memcheck.plan.schema import schema_path

SCRIPT = """
import sys
from memcheck.edge.imports import OwnModules, shorten
shorten()
from memcheck.edge import colors, lookalikes
import memcheck.plan
print(lookalikes.__spec__.loader.__class__.__name__, lookalikes.__file__ == lookalikes.__spec__.origin, memcheck.plan.__path__ != [])
print(sys.meta_path.count(OwnModules), getattr(colors, "WORD", None), lookalikes.skeleton.__code__.co_filename == lookalikes.__file__)
"""


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    """A folder with the parts of the package that the script imports."""
    for name in ("__init__.py", "edge", "plan"):
        place, to = root / "memcheck" / name, tmp_path / "memcheck" / name
        to.parent.mkdir(exist_ok=True)
        if place.is_dir():
            shutil.copytree(place, to, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(place, to)
    (tmp_path / "memcheck/edge/colors.py").write_text("WORD = 'red'\n", encoding="utf-8")
    return tmp_path


def told(folder: Path, *options: str) -> list[str]:
    """What the script prints, with bytecode kept in the folder."""
    unset = ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")
    environment = {key: value for key, value in os.environ.items() if key not in unset}
    done = subprocess.run(
        [sys.executable, *options, "-c", SCRIPT],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_stored_bytecode_is_used_while_it_is_of_the_source(copy: Path) -> None:
    """Modules come from the bytecode that Python stored, and from the source again as soon as that is another one."""
    expected = ["OwnLoader", "True", "True", "1", "red", "True"]
    assert told(copy) == expected
    stored = next((copy / "memcheck/edge/__pycache__").glob("colors.*"))
    assert told(copy) == expected
    other = stored.read_bytes().replace(b"red", b"sea")
    stored.write_bytes(other)
    assert told(copy)[4] == "sea"  # what is stored is what runs
    (copy / "memcheck/edge/colors.py").write_text("WORD = 'green'\n", encoding="utf-8")
    assert told(copy)[4] == "green"


def test_other_bytecode_is_left_to_python(copy: Path) -> None:
    """Where Python keeps bytecode under another name, the finder keeps out; where it is broken, Python makes it anew."""
    assert told(copy, "-O")[0] == "SourceFileLoader"
    told(copy)
    stored = next((copy / "memcheck/edge/__pycache__").glob(f"colors.{sys.implementation.cache_tag}.pyc"))
    stored.write_bytes(b"broken")
    assert told(copy)[4] == "red"


def test_own_json_is_read_as_json() -> None:
    """The scanner in C reads the package's schema as ``json`` does."""
    import json

    with open(schema_path(), encoding="utf-8") as file:
        assert read_own_json(schema_path()) == json.load(file)
