"""A lack of memory that a run caught and outlived is not its end; what ended it is."""

from __future__ import annotations

import pytest

from memcheck.why.answer import headline
from memcheck.why.evidence import DEVICE, NOT_OOM, UNKNOWN
from memcheck.why.log import read_log
from memcheck.why.run import answer

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. "
    "GPU 0 has a total capacity of 23.64 GiB of which 1.10 GiB is free.\n"
)
JSON = "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)\n"
HTTP = "requests.exceptions.HTTPError: 401 Client Error: Unauthorized\n"
TRACE = 'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n'


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (f"retrying with batch size 4: {OOM}step 10 loss 2.1\nstep 20 loss 1.9\n{TRACE}{JSON}", 6),
        (f"step 10\n{OOM}retrying\nstep 11\nstep 1200\nTraining complete\n{TRACE}{HTTP}", 9),
        (f"step 10\n{OOM}Training complete\n{HTTP}", 4),
        (f"{{'loss': 2.1, 'epoch': 0.1}}\n{OOM}{{'epoch': 0.2}}\n{{'epoch': 0.3}}\n{JSON}", 5),
        (f"{OOM}  1%|1 | 1/90 [00:01<01:30]\n  2%|1 | 2/90 [00:02<01:28]\n{JSON}", 4),
    ],
)
def test_an_outlived_lack_of_memory_is_a_side_note(log: str, line: int) -> None:
    """An outlived lack of memory is a side note."""
    found = answer((log,), stdin=lambda size: b"")
    assert found.kind == NOT_OOM
    assert found.message is not None
    assert found.message.line == line
    assert found.log.echoes == 0
    assert [message.kind for message in found.log.survived] == [DEVICE]
    place = f"line {found.log.survived[0].line} of"
    assert any(place in note and "went on" in note for note in found.notes)


@pytest.mark.parametrize(
    "log",
    [
        f"step 10\n{OOM}step 11\n{JSON}",  # another rank's line
        f"step 10\nstep 11\n{OOM}{TRACE}{JSON}",
        f"step 10\n{OOM}step 1\nstep 2\n",  # a restart that has not come as far
        f"{OOM}step 1\nstep 2\n{OOM}{TRACE}",  # the second one was not outlived
        f"{OOM}| 0 N/A 33C |\n| 1 N/A 33C |\n",
    ],
)
def test_a_lack_of_memory_without_progress_after_it_is_the_end(log: str) -> None:
    """A lack of memory without progress after it is the end."""
    first = read_log(log.encode()).first
    assert first is not None
    assert first.kind == DEVICE


def test_a_log_that_goes_on_and_stops_says_so() -> None:
    """A log that goes on and stops says so."""
    found = answer((f"{OOM}step 1\nstep 2\nstep 3\n",), stdin=lambda size: b"")
    assert found.kind == UNKNOWN
    assert found.message is None
    assert "went on" in headline(found)
    assert found.notes


def test_the_second_lack_of_memory_counts() -> None:
    """The second lack of memory counts."""
    log = read_log(f"{OOM}step 1\nstep 2\n{OOM}".encode())
    assert log.first is not None
    assert log.first.line == 4
    assert [message.line for message in log.survived] == [1]
