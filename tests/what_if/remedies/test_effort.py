"""The search of a gate ends by a count of its own, and says so where it ended early."""

from __future__ import annotations

import pytest

from memcheck.judge import Gate, check_file
from memcheck.plan.finding import Finding
from memcheck.what_if import with_remedies
from memcheck.what_if.remedies.budget import MOST, Effort
from memcheck.what_if.search import attach

PLAN = """\
memcheck: 1
model: llama-3.2-1b
hardware: {gpu: rtx-4090, gpus_per_node: 2}
training: {framework: huggingface, micro_batch_size: 4, sequence_length: 2048}
"""


def finding(text: str = PLAN) -> Finding:
    """What is said of a plan that needs too much."""
    attach.SEARCHES._found.clear()
    (result,), _ = check_file("plan.yaml", text.encode(), Gate(remedies=with_remedies))
    return next(each for each in result.findings if each.code == "MEM101")


def test_a_search_that_ends_early_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """With steps for half of the search there are remedies all the same, and the help says that there may be more."""
    whole = finding()
    monkeypatch.setattr(attach, "MOST", 1_000)
    part = finding()
    assert attach.FURTHER not in whole.help
    assert part.help.endswith(attach.FURTHER)
    assert part.remedies


def test_without_steps_there_is_nothing_to_offer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that may not even begin offers nothing, and its help names the command that searches on."""
    monkeypatch.setattr(attach, "MOST", -1)
    found = finding()
    assert found.remedies == ()
    assert "memcheck suggest" in found.help


def test_what_was_remembered_is_no_part_of_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search takes as many steps after one like it as alone, and fewer than it may."""
    efforts: list[Effort] = []

    class Watched(Effort):
        def __init__(self, *given: object) -> None:
            super().__init__(*given)  # type: ignore[arg-type]
            efforts.append(self)

    monkeypatch.setattr(attach, "Effort", Watched)

    finding()
    finding()
    first, again = [each.steps for each in efforts]
    assert first == again
    assert 0 < first < MOST
