"""Plans that are equal but for their names and spelling: one search serves all of them, and each gets its own edits."""

from __future__ import annotations

import pytest

from memcheck.judge import Gate, check_document
from memcheck.plan.finding import Finding
from memcheck.plan.read import load_documents
from memcheck.rules.types import RuleContext
from memcheck.what_if import with_remedies
from memcheck.what_if.search import attach

PLAN = """\
memcheck: 1
name: first
model: llama-3.1-8b
hardware: {gpu: h100-80gb, gpus_per_node: 8, host_memory_gib: 512}
parallelism: {zero_stage: 1}
training:
  framework: pytorch
  micro_batch_size: 4
  sequence_length: 4096
"""
RENAMED = PLAN.replace("first", "second")
COMMENTED = PLAN.replace("training:", "# what the team runs\n\ntraining:")
OTHERS = {
    "batch": PLAN.replace("micro_batch_size: 4", "micro_batch_size: 2"),
    "host memory": PLAN.replace("512", "64"),
    "stage": PLAN.replace("zero_stage: 1", "zero_stage: 0"),
    "policy": PLAN + "policy: {fail_above: 70%}\n",
}


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The questions that were searched for from now on, with nothing remembered."""
    questions: list[str] = []

    class Watched(attach.RemedySearch):
        def __init__(self, question: str, context: RuleContext) -> None:
            questions.append(question)
            super().__init__(question, context)

    monkeypatch.setattr(attach, "RemedySearch", Watched)
    monkeypatch.setattr(attach, "SEARCHES", attach.Searches())
    return questions


def findings(text: str, path: str = "plan.yaml", gate: Gate | None = None) -> tuple[Finding, ...]:
    """What is found in a plan, with remedies."""
    (document,) = load_documents(path, text.encode())
    return check_document(document, gate or Gate(remedies=with_remedies)).findings


@pytest.mark.parametrize("text", [RENAMED, COMMENTED])
def test_equal_plans_are_searched_once(text: str, searched: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The remedies are those of a search of its own, down to the lines that they edit."""
    alone = findings(text)
    assert any(finding.remedies for finding in alone)
    searched.clear()
    attach.SEARCHES = attach.Searches()
    findings(PLAN)
    before = len(searched)
    assert findings(text) == alone
    assert len(searched) == before > 0


@pytest.mark.parametrize("name", OTHERS)
def test_other_plans_are_searched_anew(name: str, searched: list[str]) -> None:
    """Whatever decides the remedies makes another family."""
    findings(PLAN)
    before = len(searched)
    assert findings(OTHERS[name])
    assert len(searched) > before


@pytest.mark.slow
def test_another_gate_is_another_family(searched: list[str]) -> None:
    """The threshold of the command line counts, and so does the folder that relative paths start from."""
    findings(PLAN)
    before = len(searched)
    findings(PLAN, gate=Gate(remedies=with_remedies, fail_above=0.5))
    between = len(searched)
    findings(PLAN, path="other/plan.yaml")
    assert before < between < len(searched)


def test_few_families_are_remembered(searched: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory does not grow with the repository: the oldest family makes room, and is searched again."""
    monkeypatch.setattr(attach, "REMEMBERED", 1)
    findings(PLAN)
    findings(OTHERS["batch"])
    before = len(searched)
    findings(PLAN)
    assert len(searched) > before
