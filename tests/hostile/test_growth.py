"""Two sizes of every kind of input: four times as much takes at most 1.3 times four times the time and the memory.

Time is that of the process's own work, and the least of several runs: other processes of the machine do not count.
"""

from __future__ import annotations

import os
import time
import tracemalloc
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from memcheck.__main__ import main
from memcheck.edge import opener
from memcheck.judge import MOST_OF_A_CODE, Gate, check_file
from memcheck.plan.compose import MAX_REPEATED
from tests.hostile.grown import Kind, plan
from tests.hostile.grown_configs import CONFIGS
from tests.hostile.grown_plans import PLANS, REPORTS
from tests.hostile.grown_scripts import SCRIPTS
from tests.hostile.grown_wrappers import WRAPPERS

KINDS = {**PLANS, **SCRIPTS, **CONFIGS, **WRAPPERS, **REPORTS}
FACTOR = 4
MOST = 1.3 * FACTOR
LEAST_S, LEAST_BYTES = 0.02, 2**18
"""What a run of the smaller size is taken to need at least: below it the clock and the allocator's blocks decide."""
TRIES = 4


def prepare(kind: Kind, count: int, salt: str, folder: Path) -> list[str]:
    """The files of one run, in a folder of its own; the command."""
    _, make, command = kind
    for name, text in make(count, salt).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    os.chdir(folder)
    return list(command)


def seconds(kind: Kind, count: int, salt: str, folder: Path) -> float:
    """What the process works for one run."""
    command = prepare(kind, count, salt, folder)
    start = time.process_time()
    assert main(command) in (0, 1, 2)
    return time.process_time() - start


def size(kind: Kind, count: int, salt: str, folder: Path) -> int:
    """The most bytes that one run holds at a time."""
    command = prepare(kind, count, salt, folder)
    tracemalloc.start()
    main(command)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_time_and_memory_grow_with_the_input(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No kind of input costs more than in proportion, in whichever format it is reported."""
    monkeypatch.chdir(tmp_path)
    kind, base = KINDS[name], KINDS[name][0]

    def folder() -> Path:
        return tmp_path / str(len(list(tmp_path.iterdir())))

    seconds(kind, max(2, base // 10), "first", folder())  # imports
    small = large = float("inf")
    for attempt in range(TRIES):
        small = min(small, seconds(kind, base, f"small{attempt}", folder()))
        large = min(large, seconds(kind, FACTOR * base, f"large{attempt}", folder()))
        if large <= MOST * max(small, LEAST_S):
            break
    assert large <= MOST * max(small, LEAST_S)
    half = -(-base // 2)  # of memory: to trace what is allocated takes five times as long as to work
    held = size(kind, FACTOR * half, "held large", folder())
    if held > MOST * LEAST_BYTES:
        assert held <= MOST * size(kind, half, "held small", folder())
    capsys.readouterr()


SHARED = {
    "run.sh": "source: {megatron: ./run.sh}",
    "config.json": "model: {config: ./config.json}\nhardware: {gpu: h100-80gb}\n"
    "training: {micro_batch_size: 1, sequence_length: 128}",
    "base.yaml": "extends: ./base.yaml",
}


@pytest.mark.parametrize("file", SHARED)
def test_a_file_that_many_plans_name_is_read_once(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty documents of one file name it; all see the same bytes."""
    monkeypatch.chdir(tmp_path)
    Path(file).write_text(plan("base") if file == "base.yaml" else "{}")
    text = "---\n".join(f"memcheck: 1\nname: p{number}\n{SHARED[file]}\n" for number in range(20))
    read: Counter[str] = Counter()
    before = opener._read_start

    def counted(path: str, limit: int) -> bytes:
        read[os.path.basename(path)] += 1
        return before(path, limit)

    monkeypatch.setattr(opener, "_read_start", counted)
    results, traces = check_file("p.yaml", text.encode(), Gate())
    assert (len(results), traces) == (20, [])
    assert read[file] == 1
    check_file("p.yaml", text.encode(), Gate())
    assert read[file] == 2


def test_aliases_of_many_documents_have_one_budget() -> None:
    """Each document is small, and what its aliases repeat is not."""
    names = ["a", *(f"b{number}" for number in range(4))]
    one = "a: &a [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]\n" + "".join(
        f"{new}: &{new} [{', '.join([f'*{old}'] * 6)}]\n" for old, new in pairwise(names)
    )
    results, traces = check_file("p.yaml", "---\n".join([one] * 200).encode(), Gate())
    assert traces == []
    (last,) = results[-1].findings
    assert last.code == "MEM007"
    assert f"{MAX_REPEATED:,} values" in last.message
    assert last.location.span.line > 1


@pytest.mark.slow
def test_what_documents_inherit_has_one_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each document is one line, and what it extends is long."""
    monkeypatch.chdir(tmp_path)
    Path("base.yaml").write_text(plan("base") + "".join(f"k{number}: 1\n" for number in range(8000)))
    text = "---\n".join(["memcheck: 1\nextends: ./base.yaml\n"] * 40)
    results, traces = check_file("p.yaml", text.encode(), Gate())
    assert traces == []
    assert any("from those that they extend" in each.message for each in results[-1].findings)
    assert sum(len(each.findings) for each in results) < 3 * MOST_OF_A_CODE


@pytest.mark.slow
def test_findings_of_one_code_are_counted() -> None:
    """The first are shown, and the last of them says how many follow; each document keeps one, and its status."""
    text = "---\n".join(plan(f"p{number}") + "".join(f"k{key}: 1\n" for key in range(100)) for number in range(80))
    results, _ = check_file("p.yaml", text.encode(), Gate())
    found = [each for result in results for each in result.findings if each.code == "MEM011"]
    assert MOST_OF_A_CODE <= len(found) <= MOST_OF_A_CODE + len(results)
    assert sum("more places of this file" in each.message for each in found) == 1
    assert {each.status for each in results} == {"error"}
    assert all(each.findings for each in results)
