"""PyTorch is needed for verify alone, and named when it is missing."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from memcheck.__main__ import main
from tests.sources import trees
from tests.verify.plans import plan, write

HEAVY = {"torch", "transformers", "peft", "accelerate", "torchtitan"}
without_torch = pytest.mark.skipif(find_spec("torch") is not None, reason="PyTorch is installed")


def importers(package: Path) -> Iterator[Path]:
    """Modules below a folder that import a heavy library, wherever in them; others are not parsed."""
    for path, tree in trees(package, [f"{word} {name}" for name in HEAVY for word in ("import", "from")]):
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            if any(name.partition(".")[0] in HEAVY for name in names):
                yield path
                break


def test_nothing_outside_of_verify_imports_torch(root: Path) -> None:
    """Whoever only checks plans never needs PyTorch."""
    package = root / "memcheck"
    found = {
        str(path.relative_to(package)) for path in importers(package) if not path.is_relative_to(package / "verify")
    }
    assert found == {"guard/script.py"}, "it runs in the Python of the user's own script"


def test_verify_imports_torch_where_it_runs_steps_alone(root: Path) -> None:
    """Figures of other runs, records and reports can be read without PyTorch."""
    package = root / "memcheck" / "verify"
    needs = {path.relative_to(package).parts[0] for path in importers(package)}
    assert needs == {"build", "trace", "measure.py", "observe.py"}


def test_no_command_loads_torch_to_start(tmp_path: Path) -> None:
    """The help of the program, and of verify itself, load none of the heavy libraries."""
    code = (
        "import sys; from memcheck.__main__ import main\n"
        "for line in (['--help'], ['verify', '--help']):\n    assert main(line) == 0\n"
        "heavy = {'torch', 'transformers', 'peft'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@without_torch
def test_without_torch_one_line_says_what_to_install(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, one line, with the command."""
    path = write(tmp_path, plan())
    assert main(["verify", str(path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert printed.err.startswith("memcheck: error: memcheck verify needs torch")
    assert "pip install 'memcheck[verify]'" in printed.err


@without_torch
def test_the_rest_works_without_torch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Checking and reading a figure need no PyTorch."""
    path = write(tmp_path, plan())
    assert main(["check", str(path)]) == 0
    assert main(["verify", str(path), "--observed", "1GiB"]) in {0, 1}
    capsys.readouterr()
