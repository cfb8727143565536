"""Plans under every state of the process's surroundings: the verdict or a typed error, never a defect."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.plans import write, write_broken, write_over

pytestmark = [
    pytest.mark.slow,  # each test runs processes
    pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full"),
]

VERDICTS = {"good": 0, "over": 1, "broken": 1, "missing": 2}
"""Plans, and the exit code of their check."""

PLANS = [pytest.param(plan, marks=[pytest.mark.slow] * (plan == "over")) for plan in VERDICTS]
"""Remedies take most of the time of a plan that does not fit, and print as whatever else does."""

LOST = "memcheck: error: cannot write to stdout: "


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A repository with a plan of each kind."""
    (tmp_path / ".git").mkdir()
    write(tmp_path)
    write_over(tmp_path)
    write_broken(tmp_path)
    return tmp_path


def shell(line: str, folder: Path, root: Path) -> subprocess.CompletedProcess[str]:
    """A line of sh, in which ``memcheck`` is the command."""
    script = f'memcheck() {{ "{sys.executable}" -m memcheck "$@"; }}; {line}'
    return subprocess.run(
        ["sh", "-c", script],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(root), "TMPDIR": str(folder)},
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=120,
    )


WHOLE: dict[str, subprocess.CompletedProcess[str]] = {}
"""What lines say whose process has every stream, each run once: folders differ, and the plans in them do not."""


def whole(line: str, folder: Path, root: Path) -> subprocess.CompletedProcess[str]:
    """A line in whole surroundings."""
    if line not in WHOLE:
        WHOLE[line] = shell(line, folder, root)
    return WHOLE[line]


def is_calm(done: subprocess.CompletedProcess[str], folder: Path) -> bool:
    """Neither a traceback, nor a defect's report, nor a word of the interpreter about its last flush."""
    words = ("Traceback", "Exception ignored", "defect")
    return not any(word in done.stderr for word in words) and not list(folder.glob("memcheck-defect-*"))


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("state", ["2>&-", "2>/dev/full", "<&-", "2>&- <&-"])
def test_verdict_without_stderr_or_stdin(plan: str, state: str, folder: Path, root: Path) -> None:
    """The report and the exit code are those of a whole process: what stderr would say is lost, no more."""
    expected = whole(f"memcheck check {plan}.yaml", folder, root)
    done = shell(f"memcheck check {plan}.yaml {state}", folder, root)
    assert is_calm(done, folder)
    assert (done.returncode, done.stdout) == (VERDICTS[plan], expected.stdout)
    assert done.stderr == ("" if "2>" in state else expected.stderr)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("state", [">&-", ">/dev/full", ">&- <&-"])
def test_report_that_stdout_does_not_take(plan: str, state: str, folder: Path, root: Path) -> None:
    """A report that nobody gets is an error of its own, whatever the verdict."""
    done = shell(f"memcheck check {plan}.yaml {state}", folder, root)
    assert is_calm(done, folder)
    assert (done.returncode, done.stdout) == (2, "")
    reason = "No space left on device" if "full" in state else "Bad file descriptor"
    assert f"{LOST}{reason}\n" in done.stderr


@pytest.mark.parametrize("state", [">&- 2>&- <&-", ">/dev/full 2>/dev/full", ">&- 2>/dev/full"])
def test_no_stream_at_all(state: str, folder: Path, root: Path) -> None:
    """Even then the exit code says that the report is lost."""
    done = shell(f"memcheck check good.yaml {state}", folder, root)
    assert is_calm(done, folder)
    assert done.returncode == 2


@pytest.mark.parametrize("plan", ["good", "over"])
@pytest.mark.parametrize("state", [">&- 2>&- <&-", "<&-", "2>&-"])
def test_report_file_without_streams(plan: str, state: str, folder: Path, root: Path) -> None:
    """A run that prints nothing needs no stdout; no file takes the number of a closed stream."""
    expected = whole(f"memcheck check {plan}.yaml --format jsonl", folder, root)
    done = shell(f"memcheck check {plan}.yaml --format jsonl=found {state}", folder, root)
    assert is_calm(done, folder)
    assert done.returncode == expected.returncode == VERDICTS[plan]
    assert (folder / "found").read_text(encoding="utf-8") == expected.stdout != ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    ["--version", "--help", "check --help", "list gpus", "estimate good.yaml", "suggest over.yaml", "explain MEM101"],
)
@pytest.mark.parametrize("state", [">&-", ">/dev/full"])
def test_other_commands_without_stdout(line: str, state: str, folder: Path, root: Path) -> None:
    """Every command says that its output is lost."""
    done = shell(f"memcheck {line} {state}", folder, root)
    assert is_calm(done, folder)
    assert done.returncode == 2
    assert LOST in done.stderr


@pytest.mark.parametrize("line", ["check -", "check - good.yaml", "estimate -"])
def test_plan_from_a_closed_stdin(line: str, folder: Path, root: Path) -> None:
    """A plan that cannot be read is named, and others are judged."""
    done = shell(f"memcheck {line} <&-", folder, root)
    assert is_calm(done, folder)
    assert done.returncode == 2
    assert "cannot read <stdin>: Bad file descriptor" in done.stderr
    assert ("of 79.10 GiB" in done.stdout) == ("good" in line)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("check", 2),
        ("check .", 2),
        ("check - <../good.yaml", 2),
        ("check ../good.yaml", 2),
        ("check {0}/good.yaml", 0),
        ("check {0}/good.yaml --format sarif", 2),
        ("check {0}/good.yaml --format json=report.json", 2),
        ("check --from-ref main", 2),
        ("diff --from-ref main", 2),
        ("baseline write", 2),
        ("estimate {0}/good.yaml", 0),
        ("init", 2),
        ("list gpus", 0),
    ],
)
def test_deleted_working_directory(line: str, code: int, folder: Path, root: Path) -> None:
    """What needs the working directory says that it is gone; the rest works."""
    command = line.format(folder).replace("<../", f"<{folder}/")
    done = shell(f"mkdir gone && cd gone && rmdir ../gone && memcheck {command}", folder, root)
    assert is_calm(done, folder)
    assert done.returncode == code
    assert ("No such file or directory" in done.stderr) == (code == 2)
