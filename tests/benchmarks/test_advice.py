"""Over the plans that do not fit: same hardware first, nothing that buys any, and every remedy true."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from benchmarks.over_budget import plans
from memcheck.cli.review.fix import fix_file
from memcheck.judge import Gate, check_document, check_file
from memcheck.plan.finding import GROUPS, OTHER_HARDWARE, SAME_RESULT, SEVERITIES, Remedy
from memcheck.plan.places import Document
from memcheck.plan.read import load_documents
from memcheck.rules.result import PlanResult
from memcheck.what_if import with_remedies

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = {
    **{name: ("plan.yaml", text) for name, text in plans().items()},
    **{path.stem: (f"examples/{path.name}", path.read_text(encoding="utf-8")) for path in EXAMPLES.glob("*.yaml")},
}
NONE_THAT_KEEPS_RESULTS = {
    "dense-7b-1xa100": "one GPU holds 16 bytes for each parameter",
    "dense-8b-1x4090": "one GPU holds 16 bytes for each parameter",
    "dense-1b-1xt4": "one GPU holds 16 bytes for each parameter, and its activations",
    "moe-671b-16xh200": "the states alone are too large",
    "lora-13b-1xa10": "the base alone is too large",
    "long-3b-1xa100-128k": "the states and one sequence are too large",
    "serve-70b-1xa100": "the weights alone are too large",
    "serve-405b-8xh100": "the weights alone are too large",
    "serve-8x7b-1xa100": "the weights alone are too large",
    "serve-671b-8xh100": "the weights alone are too large",
    "serve-405b-1x4090": "the weights alone are too large",
    "rough-7b-a100-80gb": "a rough model says nothing that could be recomputed or split",
}
"""Plans for which no change keeps hardware and results, as a search of the whole space finds as well."""


@cache
def failing(name: str) -> list[tuple[Document, PlanResult]]:
    """The plans of a file that need too much, with their remedies."""
    path, text = FILES[name]
    found = [(each, check_document(each, Gate(remedies=with_remedies))) for each in load_documents(path, text.encode())]
    return [(document, plan) for document, plan in found if too_much(plan)]


def too_much(plan: PlanResult) -> bool:
    """Whether an error says so."""
    return any(each.about_memory and each.severity == SEVERITIES[-1] for each in plan.findings)


def remedies(plan: PlanResult) -> tuple[Remedy, ...]:
    """Those of its errors."""
    return tuple(each for f in plan.findings if f.severity == SEVERITIES[-1] for each in f.remedies)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_the_same_hardware_comes_first(name: str) -> None:
    """The first remedy keeps hardware and results wherever any does, and groups stay together."""
    for _, plan in failing(name):
        groups = [GROUPS.index(each.group) for each in remedies(plan)]
        assert groups == sorted(groups)
        if name not in NONE_THAT_KEEPS_RESULTS:
            assert remedies(plan)[0].group == SAME_RESULT
        for each in remedies(plan):
            assert (each.group == OTHER_HARDWARE) is any(key.startswith("hardware.") for key in each.set)
            assert each.safe is (each.group == SAME_RESULT)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_every_remedy_is_true(name: str) -> None:
    """The plan with the values set passes, and needs the bytes that the remedy states."""
    for document, plan in failing(name):
        for each in remedies(plan):
            result = check_document(document, Gate(changes=each.set))
            assert not too_much(result), each.title
            assert result.estimate is not None
            assert result.estimate.needed_bytes == each.needed_bytes
            assert result.estimate.host_bytes_per_node == each.host_bytes_per_node


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_no_fix_takes_other_hardware(name: str) -> None:
    """``--fix --unsafe-fixes`` leaves the hardware of every plan as it is, and mends each that has such a remedy."""
    path, text = FILES[name]
    fixed = fix_file(path, text.encode(), Gate(remedies=with_remedies), unsafe=True)
    before = load_documents(path, text.encode())
    after = load_documents(path, fixed.data)
    assert [each.values["hardware"] for each in after] == [each.values["hardware"] for each in before]
    results, _ = check_file(path, fixed.data, Gate())
    for document, plan in failing(name):
        if any(each.group != OTHER_HARDWARE and each.is_edit for each in remedies(plan)):
            assert not too_much(results[document.index])


@pytest.mark.slow
def test_the_exceptions_are_plans_that_fail() -> None:
    """Every plan of the benchmark fails, and no exception is made for a plan that has a remedy."""
    assert all(failing(name) for name in (*plans(), *NONE_THAT_KEEPS_RESULTS))
    for name in NONE_THAT_KEEPS_RESULTS:
        assert all(each.group != SAME_RESULT for _, plan in failing(name) for each in remedies(plan))
