"""What only a process of its own shows: imports, signals, pipes, encodings, defects."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from memcheck.report import FORMATS
from tests.cli.plans import write, write_over

ENTRY = "import sys; from memcheck.__main__ import main; sys.exit(main())"
HEAVY = {
    "attr",
    "click",
    "concurrent",
    "dataclasses",
    "difflib",
    "importlib.metadata",
    "inspect",
    "jsonschema",
    "logging",
    "pathlib",
    "socket",
    "subprocess",
    "tempfile",
    "tomli",
    "tomlkit",
    "tomllib",
    "traceback",
    "unicodedata",
    "urllib",
}


@pytest.fixture
def environment(root: Path) -> dict[str, str]:
    """The package on the path, and nothing that changes the output."""
    dropped = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "PYTHONIOENCODING", "PYTHONUTF8")
    return {**{k: v for k, v in os.environ.items() if k not in dropped}, "PYTHONPATH": str(root)}


def run(
    arguments: list[str], folder: Path, environment: dict[str, str], entry: str = ENTRY
) -> subprocess.CompletedProcess[str]:
    """One command line in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", entry, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


def modules(arguments: list[str], folder: Path, environment: dict[str, str]) -> set[str]:
    """What a command line imports."""
    entry = f"{ENTRY[: -len('sys.exit(main())')]}main(); print('modules', *sys.modules, file=sys.stderr)"
    return set(run(arguments, folder, environment, entry).stderr.partition("modules ")[2].split())


def test_clean_check_imports_nothing_heavy(tmp_path: Path, environment: dict[str, str]) -> None:
    """The path of every commit is free of click, jsonschema, tomlkit and the slow parts of the standard library."""
    write(tmp_path)
    loaded = modules(["check", "good.yaml"], tmp_path, environment)
    assert "memcheck.memory.estimate" in loaded
    assert loaded & HEAVY == set()
    for unused in (
        "memcheck.what_if.remedies",
        "memcheck.cli.review.baseline",
        "memcheck.cli.review.fix",
    ):
        assert find_spec(unused), "the module has another name now"
        assert not any(name.startswith(unused) for name in loaded)
    assert "memcheck.report.text_blocks" not in loaded


@pytest.mark.parametrize("form", ["full", "csv", "gitlab", "sarif"])
def test_formats_are_loaded_when_asked_for(tmp_path: Path, environment: dict[str, str], form: str) -> None:
    """A run pays for the format that it writes and for no other."""
    write(tmp_path)
    loaded = modules(["check", "good.yaml", "--format", form], tmp_path, environment)
    modules_of = {name: FORMATS[name].partition(":")[0] for name in FORMATS}
    assert {module for module in modules_of.values() if module in loaded} == {modules_of[form]}
    assert not loaded & {"click", "jsonschema", "tomlkit"}


def test_version_imports_almost_nothing(tmp_path: Path, environment: dict[str, str]) -> None:
    """``--version`` answers from the package's own literal."""
    loaded = modules(["--version"], tmp_path, environment)
    assert {name for name in loaded if name.startswith("memcheck")} == {"memcheck", "memcheck.__main__"}
    assert loaded.isdisjoint({"yaml", "click", "re", "typing"})


def test_every_command_is_imported_alone(tmp_path: Path, environment: dict[str, str]) -> None:
    """The help knows all commands without importing one."""
    loaded = modules(["--help"], tmp_path, environment)
    assert "memcheck.cli.app" in loaded
    assert loaded.isdisjoint({"memcheck.cli.check", "memcheck.cli.init", "memcheck.judge", "yaml"})


def test_python_dash_m(tmp_path: Path, environment: dict[str, str]) -> None:
    """``python -m memcheck`` is the same command."""
    done = subprocess.run(
        [sys.executable, "-m", "memcheck", "--version"], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.split()[0]) == (0, "memcheck")


@pytest.mark.slow
def test_reader_that_leaves_is_no_error(tmp_path: Path, environment: dict[str, str]) -> None:
    """``memcheck check | head -1`` prints no traceback, and keeps its exit code."""
    for index in range(40):
        write_over(tmp_path, f"over{index}")
    process = subprocess.Popen(
        [sys.executable, "-c", ENTRY, "check", ".", "--format", "concise"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    error = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), error) == (1, b"")


def test_interrupt_exits_130(tmp_path: Path, environment: dict[str, str]) -> None:
    """Ctrl-C ends the run with a word on stderr and the shell's usual code."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"print(flush=True); {ENTRY}", "check", "-"],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.readline()
    while process.poll() is None:  # the signal may come while the interpreter still imports, and be lost
        process.send_signal(signal.SIGINT)
        try:
            process.wait(0.2)
        except subprocess.TimeoutExpired:
            continue
    error = process.stderr.read()
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()
    assert "Traceback" not in error or process.returncode == -signal.SIGINT
    assert process.returncode in {130, -signal.SIGINT}


def test_ascii_terminal_gets_ascii(tmp_path: Path, environment: dict[str, str]) -> None:
    """Where stdout is ASCII, bars are, too, and other characters of the plan become escapes."""
    write(tmp_path, "modèle-模型")
    done = run(["check", "."], tmp_path, {**environment, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert "####" in done.stdout
    assert "mod\\xe8le-\\u6a21\\u578b" in done.stdout


@pytest.mark.slow
def test_colour_can_be_forced(tmp_path: Path, environment: dict[str, str]) -> None:
    """A pipe gets colours only when asked."""
    write(tmp_path)
    assert "\x1b[" not in run(["check", "good.yaml"], tmp_path, environment).stdout
    assert "\x1b[32mpass" in run(["check", "good.yaml"], tmp_path, {**environment, "FORCE_COLOR": "1"}).stdout
    assert "\x1b[32mpass" in run(["check", "good.yaml", "--color", "always"], tmp_path, environment).stdout


def test_defect_ends_in_a_report(tmp_path: Path, environment: dict[str, str]) -> None:
    """A failure of memcheck itself exits 3, judges the other plans, and leaves a report to paste; no traceback shows."""
    write(tmp_path)
    write(tmp_path, "other")
    broken = (
        "import memcheck.judge as judge; real = judge.read_plan\n"
        "def read_plan(document):\n"
        "    if document.path == 'good.yaml': raise KeyError('boom')\n"
        "    return real(document)\n"
        "judge.read_plan = read_plan\n"
    )
    done = run(["check", ".", "--format", "json"], tmp_path, {**environment, "TMPDIR": str(tmp_path)}, broken + ENTRY)
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert {plan["name"]: plan["status"] for plan in json.loads(done.stdout)["plans"]} == {
        "good": "error",
        "other": "passed",
    }
    (page,) = tmp_path.glob("memcheck-defect-*.md")
    assert str(page) in done.stderr
    text = page.read_text(encoding="utf-8")
    for part in (
        "memcheck check . --format json",
        "Traceback (most recent call last)",
        "KeyError: 'boom'",
        "| Python |",
    ):
        assert part in text


def test_defect_outside_of_a_plan(tmp_path: Path, environment: dict[str, str]) -> None:
    """The same holds for a failure anywhere else."""
    broken = "import memcheck.cli.app as app\ndef run_app(arguments): raise ZeroDivisionError\napp.run_app = run_app\n"
    done = run(["list", "rules"], tmp_path, {**environment, "TMPDIR": str(tmp_path)}, broken + ENTRY)
    assert (done.returncode, done.stdout) == (3, "")
    assert "Traceback" not in done.stderr
    assert len(list(tmp_path.glob("memcheck-defect-*.md"))) == 1


def test_memory_that_is_not_there(tmp_path: Path, environment: dict[str, str]) -> None:
    """A machine without enough memory is no defect of memcheck's."""
    broken = "import memcheck.cli.app as app\ndef run_app(arguments): raise MemoryError\napp.run_app = run_app\n"
    done = run(["list", "rules"], tmp_path, {**environment, "TMPDIR": str(tmp_path)}, broken + ENTRY)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "memcheck: error: there is not enough memory\n"
    assert list(tmp_path.glob("memcheck-defect-*.md")) == []
