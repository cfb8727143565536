"""``check --jobs``: several processes judge, and nothing about the answer shows it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memcheck.__main__ import main
from memcheck.cli import gate, judging, pool
from memcheck.cli.judging import Gates, configurations_of
from memcheck.cli.options import CheckOptions
from memcheck.config.find import PlanFile
from memcheck.report import FORMATS
from memcheck.rules.result import Unreadable
from tests.cli.plans import GOOD, write, write_broken, write_over

Capture = pytest.CaptureFixture[str]
METHODS = ["spawn", *(["fork"] if sys.platform == "linux" else [])]
forks = pytest.mark.skipif(sys.platform != "linux", reason="processes inherit what a test changes on Linux alone")


@pytest.fixture(autouse=True)
def in_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test runs in an empty repository, where two files are enough for two processes."""
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gate, "WORTH", {"fork": 2, "spawn": 2})
    monkeypatch.setattr(pool, "BATCH", 2)
    use(monkeypatch, METHODS[-1])
    return tmp_path


def use(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """Start processes this way."""
    monkeypatch.setattr(gate, "start_method", lambda: method)


def write_many(folder: Path, count: int = 5) -> None:
    """Plans that pass, one that does not fit, one with a misspelt key and one that is no YAML."""
    for number in range(count):
        write(folder, f"good-{number}", sequence_length=str(1024 * (number + 1)))
    write_over(folder)
    write_broken(folder)
    (folder / "no.yaml").write_text("memcheck: 1\n\t- {", encoding="utf-8")


def run(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    """A line's exit code, stdout and stderr."""
    code = main(["check", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_report_is_the_one_of_a_single_process(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Order, text and bytes of all formats are what one process writes, however processes are started."""
    use(monkeypatch, method)
    write_many(tmp_path)
    text = [name for name in FORMATS if name not in {"pdf", "github"}]  # needs an extra; has a random word in it
    found = []
    for count in ("1", "2"):
        folder = tmp_path.parent / f"{method}-{count}"
        folder.mkdir()
        outputs = [f"--format={name}={folder / name}" for name in text]
        found.append((run(capsys, ".", "--jobs", count, *outputs), [(folder / name).read_bytes() for name in text]))
    assert found[0] == found[1]
    assert found[0][0][0] == 1


def test_few_plans_start_no_process(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process costs as much as several plans: below the threshold none is started, whatever was asked for."""
    write_many(tmp_path)
    monkeypatch.setattr(gate, "WORTH", {"fork": 9, "spawn": 9})
    started: list[str] = []

    class Watched(pool.Pool):
        def __init__(self, method: str, *rest: Any) -> None:
            started.append(method)
            super().__init__(method, *rest)

    monkeypatch.setattr(pool, "Pool", Watched)
    run(capsys, "--jobs", "2")
    assert started == []
    write(tmp_path, "one-more")
    run(capsys, "--jobs", "2")
    assert started != []
    started.clear()
    run(capsys, "--jobs", "1")
    assert started == []


@forks
@pytest.mark.parametrize("how", ["signal 9", "exit code 7"])
def test_a_process_that_dies_is_a_defect_of_one_file(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Whatever ends a process, the file that it judged is named, all others are judged, and the exit code is 3."""

    def dies(file: PlanFile, *rest: Any) -> object:
        if file.path == "good-1.yaml":
            os.kill(os.getpid(), signal.SIGKILL) if how == "signal 9" else os._exit(7)
        return judging.judged(file, *rest)

    write_many(tmp_path)
    whole = json.loads(run(capsys, "--jobs", "1", "--format", "json")[1])["plans"]
    monkeypatch.setattr(pool, "judged", dies)
    code, out, err = run(capsys, "--jobs", "2", "--format", "json")
    plans = json.loads(out)["plans"]
    assert code == 3
    assert f"the process that checked good-1.yaml ended with {how}" in err
    lost = next(plan for plan in plans if plan["path"] == "good-1.yaml")
    assert (lost["status"], lost["diagnostics"][0]["code"]) == ("error", "MEM000")
    assert [plan for plan in plans if plan is not lost] == [plan for plan in whole if plan["path"] != "good-1.yaml"]


@forks
def test_what_cannot_be_sent_is_judged_here(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that does not go through a pipe costs time and nothing else."""
    write_many(tmp_path)
    whole = run(capsys, "--jobs", "1", "--format", "json")
    here, really = os.getpid(), pool.judged
    monkeypatch.setattr(pool, "judged", lambda *of: really(*of) if os.getpid() == here else lambda: None)
    assert run(capsys, "--jobs", "2", "--format", "json") == whole


def test_without_processes_all_is_judged_here(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that has no process to spare still gets its verdicts."""

    def none_left(*_: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    write_many(tmp_path)
    whole = run(capsys, "--jobs", "1", "--format", "json")
    monkeypatch.setattr(pool, "Worker", none_left)
    assert run(capsys, "--jobs", "2", "--format", "json") == whole


@pytest.mark.slow
def test_processes_that_never_get_ready_are_given_up(tmp_path: Path) -> None:
    """A program from stdin cannot be started again by name: its plans are judged all the same."""
    write_many(tmp_path)
    program = (
        "from memcheck.cli import gate; from memcheck.__main__ import main\n"
        "gate.WORTH, gate.start_method = {'spawn': 2}, lambda: 'spawn'\n"
        "print(main(['check', '--format=jsonl=report.jsonl', '--jobs', '2']))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-"], input=program, text=True, capture_output=True, check=True, env=environment
    )
    assert done.stdout == "1\n"
    assert '"MEM000"' not in (tmp_path / "report.jsonl").read_text()


@pytest.mark.slow
def test_the_baseline_holds_over_all_processes(tmp_path: Path, capsys: Capture) -> None:
    """What any process met of the baseline is met; what none did is called gone, once."""
    write_many(tmp_path)
    (tmp_path / "no.yaml").unlink()
    (tmp_path / "broken.yaml").unlink()
    for name in ("over-2", "over-3"):
        write_over(tmp_path, name)
    main(["baseline", "write"])
    capsys.readouterr()
    assert run(capsys, "--baseline=.memcheck-baseline.json", "--jobs", "2")[::2] == (0, "")
    write(tmp_path, "over-3")
    found = [run(capsys, "--baseline=.memcheck-baseline.json", "--jobs", count) for count in ("1", "2")]
    assert found[0] == found[1]
    assert "accepts what is gone: MEM101 of over-3" in found[1][2]


def test_errors_of_the_configuration_are_the_same(tmp_path: Path, capsys: Capture) -> None:
    """A folder with a broken configuration ends the run with its message, in this process."""
    write_many(tmp_path)
    folder = tmp_path / "team"
    folder.mkdir()
    write(folder)
    (folder / "memcheck.toml").write_text("fail-above = 7\n", encoding="utf-8")
    found = [run(capsys, "--jobs", count) for count in ("1", "2")]
    assert found[0] == found[1]
    assert found[0][0] == 2


def test_paths_that_are_not_read_keep_their_place(tmp_path: Path, capsys: Capture) -> None:
    """What is refused or missing is reported among the others, as by one process."""
    write_many(tmp_path)
    (tmp_path / "good-9.yaml").symlink_to("/dev/zero")
    found = [run(capsys, ".", "gone.yaml", "--jobs", count, "--format", "json") for count in ("1", "2")]
    assert found[0] == found[1]
    assert found[0][0] == 2
    assert "MEM001" in found[0][1]


def test_files_are_read_as_processes_take_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory does not grow with the repository: no file is read long before the ones in front of it are judged."""
    monkeypatch.setattr(pool, "AHEAD", 6)
    read: list[str] = []

    def files() -> Iterator[PlanFile]:
        for number in range(40):
            read.append(f"{number}.yaml")
            yield PlanFile(read[-1], GOOD.format(name=number).encode())

    options = CheckOptions()
    found = pool.Pool(METHODS[-1], 2, Gates(options, configurations_of(options)), options).verdicts(files())
    for verdict in found:
        assert len(read) - read.index(verdict.file.path) <= 2 * pool.AHEAD
    assert len(read) == 40


def test_fixed_files_are_judged_as_they_are_then(tmp_path: Path, capsys: Capture) -> None:
    """``--fix`` writes first; the processes see what it wrote."""
    for number in range(4):
        path = write(tmp_path, f"plan-{number}")
        path.write_text(path.read_text().replace("micro_batch_size", "per_device_train_batch_size"))
    code, out, _ = run(capsys, "--fix", "--jobs", "2")
    assert code == 0
    assert out.endswith("checked 4 plans: 4 passed, 0 failed\n")


SLOW = """
import os, time
from memcheck.__main__ import main
from memcheck.cli import gate, pool

def slow(file, gates, keeper):
    open(f"{os.getpid()}.judging", "w").close()
    time.sleep(600)

if __name__ == "__main__":
    gate.WORTH, pool.BATCH, pool.judged = {"fork": 2}, 1, slow
    raise SystemExit(main(["check", "--jobs", "2"]))
"""


@pytest.mark.slow
@forks
def test_ctrl_c_ends_every_process(tmp_path: Path) -> None:
    """An interrupt ends the run with 130 and one line, and leaves no process behind."""
    write_many(tmp_path)
    (tmp_path / "slow.py").write_text(SLOW, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.Popen(
        [sys.executable, "slow.py"], stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    while len(list(tmp_path.glob("*.judging"))) < 2:
        assert run.poll() is None
        time.sleep(0.02)
    os.killpg(run.pid, signal.SIGINT)
    _, err = run.communicate(timeout=60)
    assert (run.returncode, err) == (130, "memcheck: error: interrupted\n")
    for marker in tmp_path.glob("*.judging"):
        with pytest.raises(ProcessLookupError):
            os.kill(int(marker.stem), 0)


@pytest.mark.slow
@forks
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_no_process_outlives_the_one_that_asks(tmp_path: Path, how: signal.Signals) -> None:
    """Whatever ends a run, without a word to the processes that it started, ends them, too."""
    write_many(tmp_path)
    (tmp_path / "slow.py").write_text(SLOW.replace("sleep(600)", "sleep(1)"), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.Popen([sys.executable, "slow.py"], stderr=subprocess.PIPE, text=True, env=environment)
    while len(list(tmp_path.glob("*.judging"))) < 2:
        assert run.poll() is None
        time.sleep(0.02)
    os.kill(run.pid, how)
    _, err = run.communicate(timeout=30)  # which is only over when nobody has the other end any more
    assert (run.returncode, err) == (-how, "")


def test_each_model_goes_to_one_process() -> None:
    """What is known of a model helps with its other plans; a process without any of its own takes from the others."""
    models = ["a", "b", "a", "b", "c", "a", "a"]
    files = [PlanFile(f"{n}.yaml", f"memcheck: 1\nmodel: {model}\n".encode()) for n, model in enumerate(models)]
    waiting = pool.Batches(iter([*files, Unreadable("no.yaml", "gone")]))
    assert [place for place, _ in waiting.read(100)] == [7]
    handed = [[place for place, _ in waiting.take(process)] for process in ("one", "two", "one", "two", "two")]
    assert handed == [[0, 2], [1, 3], [5, 6], [4], []]
    assert not waiting


def test_a_process_takes_over_what_others_have_not_got_to() -> None:
    """A folder of one model keeps all processes busy."""
    files = [PlanFile(f"{n}.yaml", b"memcheck: 1\nmodel: a\n") for n in range(6)]
    waiting = pool.Batches(iter(files))
    assert not list(waiting.read(4))
    assert [[place for place, _ in waiting.take(process)] for process in ("one", "two", "one")] == [[0, 1], [2, 3], []]
    assert not list(waiting.read(8))
    assert [place for place, _ in waiting.take("two")] == [4, 5]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (b"memcheck: 1\nmodel: llama-3.1-8b\n", b"llama-3.1-8b"),
        (b"base_model: org/name", b"org/name"),
        (b"model_name_or_path: org/name\r\n", b"org/name"),
        (b"\xff\x00", b""),
    ],
)
def test_the_model_that_a_file_shows(text: bytes, named: bytes) -> None:
    """Plans and other tools' configs name it in a line; what has none is of no model."""
    assert pool._model(text) == named
