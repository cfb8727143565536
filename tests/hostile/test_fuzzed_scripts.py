"""Python files and notebooks that nobody wrote: each ends in a verdict or a located error, and none of it is run."""

from __future__ import annotations

import sys

import pytest

from benchmarks.fuzz_check import run
from benchmarks.script_draw import HEAD, JOB, draw_script

STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn")
_started: list[str] = []


@pytest.fixture
def started() -> list[str]:
    """Events of other programs that the check starts; a hook stays for good, and is there once."""
    if not any(each == "hooked" for each in _started):
        sys.addaudithook(lambda event, _: _started.append(event) if event in STARTS else None)
        _started.append("hooked")
    return _started


@pytest.mark.slow
def test_no_script_misbehaves(started: list[str]) -> None:
    """No defect, no verdict without an estimate, no control character, no program that is started.

    ``python -m benchmarks.fuzz_scripts`` draws thousands.
    """
    before = len(started)
    found = {number: run(draw_script(0, number)) for number in range(60)}
    assert {
        number: outcome for number, outcome in found.items() if set(outcome.faults) & {"defect", "unjudged", "unclean"}
    } == {}
    assert {outcome.code for outcome in found.values()} <= {0, 1, 2}
    assert len(started) == before


def test_a_script_is_a_function_of_its_seed_and_number() -> None:
    """Files and arguments are the same whatever was drawn before, and most hold a job."""
    assert draw_script(3, 7) == draw_script(3, 7)
    texts = [next(iter(draw_script(3, number).files.values())) for number in range(12)]
    assert sum(b"SFTTrainer(model, args=args)" in text for text in texts) > 4
    compile(HEAD + JOB, "job", "exec")


def test_a_script_of_many_calls_is_read_in_part() -> None:
    """Steps are bounded, so that no file takes more than a second."""
    grown = "def f(a):\n    return a\n" + "".join(
        f"def f{n}(a):\n    return f{n - 1 if n else ''}(f{n - 1 if n else ''}(a))\n" for n in range(18)
    )
    given = draw_script(0, 0)._replace(
        files={"train.py": (HEAD + grown + "f17(1)\n" + JOB).encode()}, arguments=("train.py", "--gpu", "a100-80gb")
    )
    outcome = run(given)
    assert outcome.code in (0, 1, 2)
    assert outcome.cpu_s < 5
