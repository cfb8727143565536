"""Remedies of warnings and of host memory: the finding is gone after each, and its span is the cheapest written key."""

from __future__ import annotations

import pytest

from memcheck.judge import Gate, check_document
from memcheck.plan.finding import Finding
from memcheck.plan.places import Document
from memcheck.plan.read import load_documents, with_changes
from memcheck.what_if import with_remedies

PLAN = """\
memcheck: 1
model: llama-3.1-8b
hardware: {{gpu: {gpu}, gpus_per_node: 8{host}}}
parallelism: {{zero_stage: {stage}}}
training:
  framework: {framework}
  micro_batch_size: {batch}
  sequence_length: 4096
  optimizer: {optimizer}
policy: {{fail_above: 100%, warn_above: {warn}}}
"""
CASES = {
    "MEM103": {"warn": "55%"},
    "MEM104": {"gpu": "{name: lab, memory_gib: 52}", "warn": "100%"},
    "MEM106": {
        "framework": "deepspeed",
        "stage": "2",
        "host": ", host_memory_gib: 64",
        "optimizer": "{name: adamw, offload: cpu}",
        "warn": "100%",
    },
}


def document(**given: str) -> Document:
    """A plan that one of the rules finds."""
    usual = {"gpu": "h100-80gb", "host": "", "stage": "3", "framework": "pytorch", "batch": "1", "optimizer": "adamw"}
    (found,) = load_documents("plan.yaml", PLAN.format(**(usual | given)).encode())
    return found


def finding(source: Document, code: str) -> Finding | None:
    """What the rule says, with its remedies."""
    return next(
        (each for each in check_document(source, Gate(remedies=with_remedies)).findings if each.code == code), None
    )


@pytest.mark.slow
@pytest.mark.parametrize("code", CASES)
def test_every_remedy_ends_the_finding(code: str) -> None:
    """Made in the plan, each remedy leaves no finding of the rule and of no graver one."""
    source = document(**CASES[code])
    found = finding(source, code)
    assert found is not None
    assert found.remedies
    for remedy in found.remedies:
        after = check_document(with_changes(source, remedy.set), Gate())
        assert after.estimate is not None, remedy.title
        codes = {each.code for each in after.findings if each.code.startswith("MEM1")}
        assert code not in codes, remedy.title
        assert not codes & {"MEM101", "MEM102"}, remedy.title


@pytest.mark.parametrize("code", CASES)
def test_the_span_is_the_cheapest_written_key(code: str) -> None:
    """The finding points at the key of the first remedy that changes what the plan writes."""
    source = document(**CASES[code])
    found = finding(source, code)
    assert found is not None
    sets = [key for remedy in found.remedies for key in remedy.set if key != "training.gradient_accumulation_steps"]
    keys = [key.replace(".", "/") for key in sets]
    written = [key for key in keys if any(f"/{key}".startswith(p) for p in source.marks if p.count("/") > 1)]
    assert written
    assert f"/{written[0]}".startswith(found.pointer)
    assert found.help.startswith(found.remedies[0].title)


def test_offloading_less_is_a_remedy_for_the_host() -> None:
    """What was moved to the host comes back where the GPU has room for it, or gets it from one more change."""
    found = finding(document(**CASES["MEM106"]), "MEM106")
    assert found is not None
    assert any(remedy.set.get("training.optimizer.offload") == "none" for remedy in found.remedies)
    assert found.pointer == "/training/optimizer/offload"


@pytest.mark.slow
def test_without_a_remedy_a_warning_stays_as_it_is() -> None:
    """Nothing that can be changed quickly empties a GPU below a hundredth: the warning keeps its own span."""
    source = document(warn="1%")
    quick = next(f for f in check_document(source, Gate()).findings if f.code == "MEM103")
    assert finding(source, "MEM103") == quick


@pytest.mark.slow
def test_a_gate_spares_a_slow_change_by_many_that_cost_no_time() -> None:
    """32B on 8 GPUs: parameters on the host beside recomputation alone take three times as long; with a fused loss and
    optimizer, too, less than twice.
    """
    text = """\
memcheck: 1
model: qwen2.5-32b
hardware: {gpu: h100-80gb, gpus_per_node: 8}
parallelism: {zero_stage: 3}
training: {framework: pytorch, micro_batch_size: 2, sequence_length: 8192, gradient_accumulation_steps: 4}
"""
    (source,) = load_documents("plan.yaml", text.encode())
    found = finding(source, "MEM101")
    assert found is not None
    first = found.remedies[0]
    assert first.safe
    assert first.slowdown is not None
    assert first.slowdown < 1
