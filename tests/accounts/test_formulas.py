"""What ``--formulas`` says of units in flight."""

from __future__ import annotations

import pytest

from memcheck.accounts.estimate import Formula
from memcheck.memory.estimate import estimate
from memcheck.memory.overhead_terms import CACHE, FRAGMENTATION
from memcheck.report.story.memory import CACHE_ROW, formula_head
from tests.memory.jobs import BIG_GPU, job, llama_8b


@pytest.mark.parametrize(("layers", "name"), [(1, "layer 0: 1 x "), (4, "layer 0 to layer 3: 4 x ")])
def test_a_run_of_alike_units_is_named_by_its_ends(layers: int, name: str) -> None:
    """One unit has one name, and several have the first's and the last's."""
    found = estimate(job(llama_8b(layers)), BIG_GPU, inventory=True).formulas
    named = [each.numbers for each in found if each.component == "activations"]
    assert [each for each in named if each.startswith(name)], named


def test_sizes_are_numbers_beside_their_symbols() -> None:
    """Nobody has to know what T and h stand for, and a formula without bytes of its own names none."""
    found = estimate(job(llama_8b(4)), BIG_GPU, inventory=True).formulas
    text = " ".join(each.formula for each in found)
    assert "h = 4096] bf16" in text
    assert "[T = " in text


def test_the_cache_is_no_fragmentation() -> None:
    """What the allocator gives back has the name that the budget has for it, and its colour."""
    stuck = Formula("fragmentation", FRAGMENTATION, "", 1, "")
    assert formula_head(stuck) == ("fragmentation", "fragmentation")
    assert formula_head(stuck._replace(formula=CACHE)) == ("cache", CACHE_ROW)
