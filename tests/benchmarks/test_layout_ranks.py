"""Ranks of published layouts: one more than the number of legal, fitting plans that are strictly faster."""

from __future__ import annotations

import pytest

from benchmarks.cases import load
from benchmarks.layout_ranks import EQUAL, RECIPE, RECORDED, Search, faster, layouts_faster, splits_faster, timed
from benchmarks.throughput import layouts
from memcheck.what_if.search.rank import split_of

pytestmark = pytest.mark.slow

PLACES = 20
"""Among so many of its recipe's fastest a published layout has to be."""


@pytest.fixture(scope="module")
def small() -> Search:
    """The space of Llama 3.1 8B on eight GPUs, with the recipe kept."""
    return timed(layouts()[0].document, RECIPE)


def test_faster_plans_are_legal_fit_and_keep_the_recipe(small: Search) -> None:
    """What counts against the published layout is faster by the model, fits by the engine and changes its layout."""
    found = faster(small)
    assert found
    for each in found:
        priced = small.pricer.price(each.candidate)
        assert priced is not None
        assert small.pricer.fits(priced)
        assert priced.slowdown is not None
        assert priced.slowdown < -EQUAL
        assert all(key.startswith(("parallelism.", "training.gradient_acc")) for key in priced.changes)


def test_no_faster_plan_is_left_out(small: Search) -> None:
    """Every plan of the space that is faster and fits is counted, once for the same step."""
    steps = set()
    for each in small.plans:
        priced = small.pricer.price(each.candidate, prune=False)
        if each.slower < -EQUAL and priced is not None and small.pricer.fits(priced):
            steps.add(each.step)
    assert {each.step for each in faster(small)} == steps


def test_layouts_count_once(small: Search) -> None:
    """Of each layout only the fastest settings count, against the fastest of the published one."""
    found = layouts_faster(small)
    assert len({each.layout for each in found}) == len(found)
    assert small.pricer.context.layout not in {each.layout for each in found}


def test_splits_count_once_as_suggest_lists_them(small: Search) -> None:
    """Layouts with the same degrees are one answer, and none counts behind the own one's fastest."""
    layouts = layouts_faster(small)
    found = splits_faster(small, layouts)
    own = split_of(small.pricer.context.layout)
    splits = [split_of(each.layout) for each in found]
    assert len(set(splits)) == len(splits)
    assert own not in splits
    slower = [layouts[0]._replace(layout=small.pricer.context.layout), *layouts] if layouts else []
    assert splits_faster(small, slower) == []


def test_recorded_ranks() -> None:
    """Every published layout is recorded, within the first twenty of its recipe and of the splits of ``suggest``."""
    recorded = load(RECORDED)
    assert set(recorded) == {layout.title for layout in layouts()}
    for title, ranks in recorded.items():
        rank, _, considered = ranks["recipe kept"].partition(" of ")
        assert int(rank) <= PLACES, title
        assert int(considered.replace(",", "")) > 10_000
        assert int(ranks["suggested"]) <= PLACES, title
