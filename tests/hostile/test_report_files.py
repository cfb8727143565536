"""Report files when the disk is full or the process dies: the old report or the new one, and nothing beside it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from memcheck.cli.replace import put_in_place, replace
from memcheck.cli.write import write_file
from memcheck.errors import UsageError
from tests.cli.plans import write

ENTRY = "import sys; from memcheck.__main__ import main; sys.exit(main())"
KILLED = "import os, signal\ndef fsync(_): os.kill(os.getpid(), signal.SIGKILL)\nos.fsync = fsync\n"
SMALL = """\
import resource, signal, sys
sys.dont_write_bytecode = True  # the interpreter would keep the part of a module that fits
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
"""


def run(before: str, folder: Path, root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One command line in a process that something is done to first."""
    return subprocess.run(
        [sys.executable, "-c", before + ENTRY, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a plan and a report of some earlier run."""
    write(tmp_path)
    (tmp_path / "report.json").write_text("the old report")
    return tmp_path


def test_killed_while_a_report_is_written(folder: Path, root: Path) -> None:
    """A process that is killed before its report is whole leaves the old one, and no temporary file."""
    if not hasattr(os, "O_TMPFILE"):
        pytest.skip("this system has no files without a name")
    before = sorted(os.listdir(folder))
    done = run(KILLED, folder, root, "check", "good.yaml", "--format", "json=report.json")
    assert done.returncode == -signal.SIGKILL
    assert sorted(os.listdir(folder)) == before
    assert (folder / "report.json").read_text() == "the old report"


def test_killed_while_a_plan_is_fixed(folder: Path, root: Path) -> None:
    """The same holds for plans that are mended."""
    if not hasattr(os, "O_TMPFILE"):
        pytest.skip("this system has no files without a name")
    plan = folder / "good.yaml"
    plan.write_text(plan.read_text().replace("micro_batch_size", "micro_batchsize"))
    text, before = plan.read_text(), sorted(os.listdir(folder))
    done = run(KILLED, folder, root, "check", "good.yaml", "--fix")
    assert done.returncode == -signal.SIGKILL
    assert sorted(os.listdir(folder)) == before
    assert plan.read_text() == text


@pytest.mark.parametrize("name", ["report.json", "new.json"])
def test_disk_without_room(name: str, folder: Path, root: Path) -> None:
    """A report that does not fit is an error; the old one stays, and no empty or partial file appears."""
    before = sorted(os.listdir(folder))
    done = run(SMALL, folder, root, "check", "good.yaml", "--format", f"json={name}")
    assert done.returncode == 2
    assert done.stderr == f"memcheck: error: cannot write the report to {name}: File too large\n"
    assert sorted(os.listdir(folder)) == before
    assert (folder / "report.json").read_text() == "the old report"


def test_first_plan_on_a_disk_without_room(tmp_path: Path, root: Path) -> None:
    """``init`` takes away what it could not write to its end."""
    done = run(SMALL, tmp_path, root, "init", "plan.yaml")
    assert done.returncode == 2
    assert done.stderr == "memcheck: error: cannot write plan.yaml: File too large\n"
    assert os.listdir(tmp_path) == []


def test_report_keeps_links_and_permissions(folder: Path) -> None:
    """What is replaced is the file behind a link, and it may be read by whom it could be before."""
    (folder / "report.json").chmod(0o640)
    (folder / "latest.json").symlink_to("report.json")
    write_file(str(folder / "latest.json"), "new")
    assert (folder / "latest.json").is_symlink()
    assert (folder / "report.json").read_text() == "new"
    assert (folder / "report.json").stat().st_mode & 0o777 == 0o640


def test_new_report_has_the_usual_permissions(tmp_path: Path) -> None:
    """A new report may be read by whom any new file may be."""
    (tmp_path / "usual").write_text("")
    write_file(str(tmp_path / "report"), "new")
    assert (tmp_path / "report").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_file_that_cannot_change_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that a container mounts is overwritten, shorter text included; a plan is left as it is."""
    report = tmp_path / "report.json"
    report.write_text("the old report")

    def busy(source: str, target: str) -> None:
        raise OSError(16, "Device or resource busy", source, None, target)

    monkeypatch.setattr(os, "replace", busy)
    put_in_place(str(report), b"new")
    assert report.read_bytes() == b"new"
    with pytest.raises(OSError, match="busy"):
        replace(str(report), b"newer")
    assert report.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["report.json"]


@pytest.mark.parametrize("flag", ["no flag", "refused", "no link"])
def test_systems_without_files_without_a_name(flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere a file with a name of its own stands in, and is gone afterwards."""
    report = tmp_path / "report.json"
    if flag == "no flag":
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    elif flag == "refused":
        monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY | os.O_WRONLY, raising=False)
    else:

        def link(*_: object, **__: object) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(os, "link", link)
    for data in (b"first", b"second"):
        put_in_place(str(report), data)
        assert report.read_bytes() == data
        assert os.listdir(tmp_path) == ["report.json"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full")
def test_full_device() -> None:
    """A device is written, never replaced."""
    with pytest.raises(UsageError, match="cannot write the report to /dev/full: No space left on device"):
        write_file("/dev/full", "text")
    assert not os.path.isfile("/dev/full")


def test_named_pipe(tmp_path: Path) -> None:
    """A pipe takes the report as it comes, and stays a pipe."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_file(str(pipe), "text")
    assert os.read(reader, 100) == b"text"
    os.close(reader)
    assert pipe.is_fifo()


def test_other_name_of_stdout(folder: Path, root: Path) -> None:
    """``--format json=/dev/stdout > file`` ends in the file that the shell opened."""
    if not os.path.exists("/dev/stdout"):
        pytest.skip("this system has no /dev/stdout")
    line = f'"{sys.executable}" -m memcheck check good.yaml --format json=/dev/stdout > out; wc -c < out'
    done = subprocess.run(
        ["sh", "-c", line],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert int(done.stdout) > 100
    assert (folder / "out").read_text().startswith("{")
