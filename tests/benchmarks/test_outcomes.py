"""Both error rates over published jobs: what counts as unsafe and as refused."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import outcomes
from benchmarks.outcomes import BEYOND, LIMIT, Outcome, Verdict

PLAN: dict[str, Any] = {
    "model": "llama-3.2-1b",
    "hardware": {"gpu": "h100-80gb"},
    "training": {"framework": "pytorch", "micro_batch_size": 1, "sequence_length": 1024},
}


def job(*, died: bool, assumption: str = "", **hardware: object) -> Outcome:
    """A published job of a small model."""
    plan = {**PLAN, "hardware": {**PLAN["hardware"], **hardware}}
    return Outcome("a", outcomes.kind_of(plan), died, plan, None, "here", "words", assumption)


def verdict(*, died: bool, passed: bool, reason: str = "", assumption: str = "", read: int | None = None) -> Verdict:
    """What the gate said of a job."""
    found = job(died=died, assumption=assumption)._replace(allocated_bytes=read)
    return Verdict(found, passed, 0.5, 110, reason, "")


def test_a_job_that_died_and_passes_is_unsafe() -> None:
    """One whose plan assumes something is told apart from one that is fully stated."""
    found = outcomes.rates(
        [
            verdict(died=True, passed=True),
            verdict(died=True, passed=True, assumption="512 tokens"),
            verdict(died=True, passed=False, reason=BEYOND),
        ]
    )
    assert (found.died, found.unsafe, found.unsafe_stated, found.ran) == (3, 2, 1, 0)


def test_a_job_that_ran_and_does_not_pass_is_refused() -> None:
    """Beyond the card and above the limit are counted apart; of readings the distance is kept."""
    found = outcomes.rates(
        [
            verdict(died=False, passed=False, reason=BEYOND, read=100),
            verdict(died=False, passed=False, reason=LIMIT, read=110),
            verdict(died=False, passed=True, read=220),
        ]
    )
    assert (found.ran, found.beyond, found.limit, found.other, found.unsafe) == (3, 1, 1, 0, 0)
    assert (found.readings, round(found.median, 3), found.worst) == (3, 0.1, 0.5)


def test_a_prediction_is_no_less_than_what_was_asked_for_when_the_job_died() -> None:
    """Allocated and the allocation that failed are a lower bound of what the step needs."""
    asked = [job(died=True)._replace(asked_bytes=size) for size in (110, 111)]
    found = outcomes.rates([Verdict(each, False, 1.1, 110, BEYOND, "") for each in asked])
    assert (found.asked, found.short) == (2, 1)


def test_a_reading_of_reserved_memory_lies_between_the_ends_of_what_is_seen() -> None:
    """Both ends belong to it."""
    read = [job(died=False)._replace(reserved_bytes=size) for size in (99, 100, 120, 121)]
    found = outcomes.rates([Verdict(each, True, 0.5, 90, "", "", (100, 120)) for each in read])
    assert (found.seen, found.outside) == (4, 2)


def test_what_is_seen_of_reserved_memory_is_without_what_is_outside_the_allocator() -> None:
    """As in the table of published figures."""
    found = outcomes.judged(job(died=False))
    assert found.reserved_ends is not None
    low, high = found.reserved_ends
    assert found.allocated_bytes is not None
    assert low <= found.allocated_bytes <= high


@pytest.mark.parametrize(("gpu", "passes", "reason"), [("h100-80gb", True, ""), ("t4", False, BEYOND)])
def test_a_job_is_judged_as_the_gate_judges_a_plan(gpu: str, passes: bool, reason: str) -> None:
    """A small model fits one card, and not the other."""
    found = outcomes.judged(job(died=False, gpu=gpu))
    assert (found.passed, found.reason) == (passes, reason)
    assert found.allocated_bytes is not None


def test_a_worse_rate_is_a_regression() -> None:
    """One more unsafe plan, or a kind that is gone, is named; equal rates are not."""
    now = outcomes.by_kind([verdict(died=True, passed=True)])
    better = {kind: {**r, "unsafe": 0} for kind, r in outcomes.record(now).items()}
    assert outcomes.regressions(now, outcomes.record(now), 0.0) == []
    assert any("unsafe 1, recorded 0" in each for each in outcomes.regressions(now, better, 0.0))
    assert outcomes.regressions({}, better, 0.0)


def test_kinds_apart_count_in_no_rate_and_are_listed() -> None:
    """A job whose kind has something unknown is neither unsafe nor refused; the page says what is said of it."""
    found = verdict(died=True, passed=True)
    apart = found._replace(outcome=found.outcome._replace(apart="bases in 8 bits"))
    assert outcomes.by_kind([found, apart])["all"].died == 1
    assert outcomes.by_kind([apart])["all"].unsafe == 0
    assert any("bases in 8 bits: `a` died" in line for line in outcomes.section([apart]))


def test_the_readme_holds_the_rates_of_all_kinds() -> None:
    """Between two marks, and nothing around them moves."""
    text = f"before\n{outcomes.BEGIN}old{outcomes.END}\nbehind"
    found = outcomes.in_readme(text, [verdict(died=True, passed=True)])
    assert found.startswith("before\n")
    assert found.endswith("\nbehind")
    assert "1 pass the gate" in found
    assert outcomes.in_readme(found, [verdict(died=True, passed=True)]) == found


def test_every_published_job_has_a_source_and_an_outcome() -> None:
    """What the benchmark counts can be looked up."""
    for each in outcomes.outcomes():
        assert each.source, each.id
        assert each.quote, each.id
