"""Remedies of plans that serve: each kind where it is what helps, re-priced, written and said plainly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memcheck.__main__ import main
from memcheck.config.find import DEFAULT_FAIL_ABOVE
from memcheck.judge import Gate, check_document
from memcheck.plan.finding import GROUPS, OTHER_HARDWARE, SAME_RESULT, Remedy
from memcheck.plan.read import load_documents
from memcheck.what_if.remedies.candidates import serving
from memcheck.what_if.remedies.price import Pricer
from tests.what_if.remedies.plans import over_budget
from tests.what_if.search.contexts import context_of

PLAN = """\
memcheck: 1
model: {model}   # what we serve
hardware: {{gpu: {gpu}, gpus_per_node: {gpus}}}
parallelism: {{tensor: {tensor}}}
inference:
  batch_size: {batch}      # at a time
  context_length: {context}
  weights: {weights}
"""
NARROW = {"model": "llama-3.1-8b", "gpu": "rtx-4090", "gpus": 1, "tensor": 1, "weights": "bf16"}
LONG = {**NARROW, "batch": 1, "context": 65536}
MANY = {**NARROW, "batch": 28, "context": 2048}
SHORT = {**NARROW, "batch": 56, "context": 1024}
LARGE = {**NARROW, "model": "qwen2.5-14b", "batch": 1, "context": 4096}
SPLIT = {**LARGE, "gpus": 4}
FULL = {**NARROW, "batch": 8, "context": 1024, "weights": "fp32"}
OLD = {**LARGE, "gpu": "a10"}
CASES = {
    "a shorter context": (LONG, "inference.context_length", True),
    "a smaller cache": (MANY, "inference.kv_cache", False),
    "fewer sequences": (SHORT, "inference.batch_size", True),
    "smaller weights": (LARGE, "inference.weights", False),
    "weights in 16 bits": (FULL, "inference.weights", False),
    "more tensor ranks": (SPLIT, "parallelism.tensor", False),
    "larger GPUs": (LARGE, "hardware.gpu", False),
    "weights in int8 where there is no fp8": (OLD, "inference.weights", False),
}
"""What is to be found: the plan, the key that is changed, whether it changes what can be served."""


def text_of(values: dict[str, Any]) -> str:
    """The plan's file."""
    return PLAN.format(**values)


def found(name: str) -> Remedy:
    """The remedy of a case that changes its key alone."""
    values, key, _ = CASES[name]
    return next(r for r in over_budget(text_of(values)).remedies if key in r.set)


@pytest.mark.parametrize("name", CASES)
def test_each_kind_is_found_and_does_what_it_says(name: str) -> None:
    """The plan with the values set passes, and needs the bytes that the remedy states."""
    remedy = found(name)
    (document,) = load_documents("plan.yaml", text_of(CASES[name][0]).encode())
    result = check_document(document, Gate(changes=remedy.set))
    assert [f.code for f in result.findings if f.severity == "error"] == []
    assert result.estimate is not None
    assert result.estimate.device_bytes == remedy.device_bytes
    assert remedy.utilization <= 0.95
    assert remedy.edits


@pytest.mark.parametrize("name", CASES)
def test_what_can_be_served_is_named(name: str) -> None:
    """A title says which requests wait or have no answer any more; only what refuses requests is not safe."""
    remedy, less = found(name), CASES[name][2]
    words = ("other requests wait", "longer requests cannot be served")
    assert any(each in remedy.title for each in words) is less
    assert remedy.safe is (set(remedy.set) <= {"inference.batch_size", "parallelism.tensor"})


@pytest.mark.parametrize("name", CASES)
def test_fewer_sequences_come_first(name: str) -> None:
    """Remedies come by group, and those that serve shorter requests after all other ones on the same hardware."""
    remedies = over_budget(text_of(CASES[name][0])).remedies
    groups = [GROUPS.index(r.group) for r in remedies]
    assert groups == sorted(groups)
    refuses = ["inference.context_length" in r.set for r in remedies if r.group != OTHER_HARDWARE]
    assert refuses == sorted(refuses)
    assert {r.group for r in remedies if set(r.set) == {"inference.batch_size"}} <= {SAME_RESULT}


def test_the_longest_context_that_helps_comes_first() -> None:
    """Contexts go down by quarters, and the first that fits with its whole interval is offered, not a shorter one."""
    context = context_of(text_of(LONG))._replace(fail_above=DEFAULT_FAIL_ABOVE)
    tried = [c for c in serving(context, context.job) if c.kind == "context"]  # type: ignore[arg-type]
    lengths = [c.set["inference.context_length"] for c in tried]
    assert lengths[:5] == [49152, 32768, 24576, 16384, 12288]
    assert lengths[-1] == 1024
    pricer = Pricer(context)
    priced = [p for c in tried if (p := pricer.price(c)) is not None]
    first = next(p for p in priced if pricer.fits(p) and p.sure)
    assert found("a shorter context").set == first.changes


def test_dtypes_are_those_of_the_gpu() -> None:
    """fp8 from Ada on, else int8; fp4 on Blackwell."""

    def offered(gpu: str) -> list[object]:
        context = context_of(text_of({**LARGE, "gpu": gpu}))
        return [c.set["inference.weights"] for c in serving(context, context.job) if c.kind == "weights"]  # type: ignore[arg-type]

    assert offered("a10") == ["int8", "int4"]
    assert offered("rtx-4090") == ["fp8", "int4"]
    assert offered("b200") == ["fp8", "fp4", "int4"]


def test_experts_stay_on_the_tensor_ranks() -> None:
    """Where a plan deals them out over all tensor ranks, more ranks take their share of them."""
    text = text_of({**LARGE, "model": "mixtral-8x7b", "gpus": 8, "tensor": 2})
    text = text.replace("tensor: 2", "tensor: 2, expert: 2")
    context = context_of(text)
    changes = [c.set for c in serving(context, context.job) if c.kind == "tensor"]  # type: ignore[arg-type]
    assert {"parallelism.tensor": 4, "parallelism.expert": 4} in changes


GOALS = {
    "fit": (LONG, ""),
    "throughput": ({**LARGE, "gpus": 8, "tensor": 8}, "parallelism."),
    "gpus": ({**LARGE, "gpus": 8, "tensor": 8}, "hardware.gpus_per_node"),
    "max-batch": ({**NARROW, "batch": 1, "context": 2048}, "inference.batch_size"),
    "max-sequence": ({**NARROW, "batch": 1, "context": 2048}, "inference.context_length"),
}


@pytest.mark.parametrize("goal", GOALS)
def test_each_goal_answers_a_server(
    goal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first suggestion changes what the goal is about, says what is served, is written, and passes ``check``."""
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    values, key = GOALS[goal]
    Path("plan.yaml").write_text(text_of(values))
    assert main(["suggest", "plan.yaml", "--goal", goal, "--format", "json"]) == 0
    first = json.loads(capsys.readouterr().out)["remedies"][0]
    assert any(each.startswith(key) for each in first["set"])
    assert bool(first["serves"]) is any(
        each in first["set"] for each in ("inference.batch_size", "inference.context_length")
    )
    assert main(["suggest", "plan.yaml", "--goal", goal, "--apply", "1"]) == 0
    told = capsys.readouterr().err
    assert ("changes what can be served" in told) is bool(first["serves"])
    assert "# what we serve" in Path("plan.yaml").read_text()
    assert main(["check", "plan.yaml"]) == 0
