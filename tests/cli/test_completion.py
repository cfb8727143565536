"""The shell's completion, which click provides."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from memcheck.catalog.names import gpu_names
from memcheck.report import FORMATS

pytestmark = pytest.mark.slow  # each test runs processes

ENTRY = "import sys; from memcheck.__main__ import main; sys.argv[0] = 'memcheck'; sys.exit(main())"


def ask(root: Path, instruction: str, words: str = "") -> subprocess.CompletedProcess[str]:
    """What the script of a shell gets when somebody presses the tab key behind ``words``."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(root),
        "_MEMCHECK_COMPLETE": instruction,
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    return subprocess.run(
        [sys.executable, "-c", ENTRY], env=environment, capture_output=True, text=True, encoding="utf-8", check=False
    )


def offered(root: Path, words: str) -> list[str]:
    """The completions of the last word, as bash gets them: type and value."""
    done = ask(root, "bash_complete", words)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_is_written(root: Path, shell: str) -> None:
    """``eval "$(_MEMCHECK_COMPLETE=bash_source memcheck)"``, and the same for zsh and fish."""
    done = ask(root, f"{shell}_source")
    assert done.returncode == 0, done.stderr
    assert f"_MEMCHECK_COMPLETE={shell}_complete" in done.stdout


def test_commands_and_options_are_offered(root: Path) -> None:
    """By their beginning."""
    assert offered(root, "memcheck che") == ["plain,check"]
    assert "plain,--statistics" in offered(root, "memcheck check --st")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("memcheck check --format ", [f"plain,{name}" for name in FORMATS]),
        ("memcheck check --format sa", ["plain,sarif"]),
        ("memcheck check --select mem101", ["plain,MEM101"]),
        ("memcheck check --ignore exceeds", ["plain,exceeds-capacity"]),
        ("memcheck explain heads", ["plain,heads-not-divisible"]),
        ("memcheck estimate a.yaml --gpu h200", [f"plain,{name}" for name in gpu_names() if name.startswith("h200")]),
        ("memcheck compare a.yaml --gpu b200,h200", ["plain,b200,h200"]),
        ("memcheck init --model llama-3.1-8", ["plain,llama-3.1-8b"]),
        ("memcheck check plans/a", ["file,plans/a"]),
        ("memcheck estimate --config m", ["file,m"]),
    ],
)
def test_names_are_offered(root: Path, words: str, expected: list[str]) -> None:
    """Formats, rules by code and by name, GPUs and models of the catalog; paths are left to the shell."""
    assert sorted(offered(root, words)) == sorted(expected)
    assert expected
