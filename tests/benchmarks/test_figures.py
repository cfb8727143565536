"""No figure that memcheck gives moves unnoticed: ``python -m benchmarks.figures --write`` after a change that is meant."""

from __future__ import annotations

import os

import pytest

from benchmarks import boundaries, cases, figures
from memcheck.frameworks.registry import FRAMEWORKS

PLANS = figures.plans()
RECORDED = figures.recorded()
EXAMPLES = dict(boundaries.examples())


@pytest.mark.parametrize("tenth", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 10))])
def test_no_figure_moved(tenth: int) -> None:
    """Needed, seen, every moment and tensor, host memory, seconds, and what the rules say, are those that are kept."""
    for number in list(PLANS)[tenth::10]:
        before, now = RECORDED[number], figures.said(PLANS[number])
        assert list(figures.moved(before, now)) == [], PLANS[number]


def test_no_profile_moved() -> None:
    """What each framework's profile states is what it stated when the figures were written."""
    assert list(figures.moved(cases.kept(figures.PROFILES), figures.profiles())) == []


@pytest.mark.parametrize("third", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_no_rule_moved(third: int) -> None:
    """What the rules say of an example, and of plans that differ from it in one value, is what is kept."""
    known = cases.kept(figures.RULES)
    for name, example in list(EXAMPLES.items())[third::3]:
        assert list(figures.moved({name: known.get(name, {})}, {name: boundaries.said_beside(example)})) == []


def test_every_example_is_kept() -> None:
    """Each rule's plans are among them, and no example that is there no longer."""
    assert list(cases.kept(figures.RULES)) == list(EXAMPLES)


def test_every_plan_is_kept_with_its_figures() -> None:
    """Neither file has a plan that the other lacks, and both together stay small enough to be read in a diff."""
    assert list(PLANS) == list(RECORDED)
    assert sum(os.path.getsize(path) for path in (figures.PLANS, figures.FILE)) <= 420_000


def test_the_plans_reach_every_framework() -> None:
    """Each is estimated and timed in many ways, not only refused."""
    timed = [PLANS[number] for number, row in RECORDED.items() if "seconds" in row]
    priced = {plan["training"].get("framework") for plan in timed if "training" in plan}
    assert set(FRAMEWORKS) <= priced


def test_what_moved_is_said_from_what_to_what() -> None:
    """Figure by figure, those inside of others by both names, and those that are new or gone."""
    before = {"needed": 1, "moments": {"init": 2, "loss": 3}, "says": ["MEM101"]}
    now = {"needed": 1, "moments": {"init": 2, "loss": 4}, "seconds": [0.5]}
    assert list(figures.moved(before, now)) == [
        "moments loss: 3 -> 4",
        "says: ['MEM101'] -> None",
        "seconds: None -> [0.5]",
    ]
