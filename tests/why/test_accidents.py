"""Synthetic accidents: one wrong number of a plan is ranked first, two are never blamed on a single one."""

from __future__ import annotations

import pytest

from benchmarks.accidents import ACCIDENTS, TWICE, causes, loaded, make
from memcheck.why.evidence import LIKELY
from memcheck.why.readings import growth


def test_every_kind_has_an_accident() -> None:
    """As many accidents as were promised, of every kind, and each stated plan fits the GPU on which it died."""
    assert len(ACCIDENTS) >= 40
    assert len(TWICE) >= 10
    assert len({accident.kind for accident in ACCIDENTS}) == 16
    for accident in (*ACCIDENTS[::7], *TWICE[::3]):
        estimate = loaded(make(accident).plan).estimate
        assert estimate.needed_interval_bytes[1] < estimate.capacity_bytes


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_one_wrong_number_is_ranked_first(step: int) -> None:
    """At least nine of ten, of all and of every fourth."""
    some = ACCIDENTS[::step]
    missed = [accident for accident in some if not (found := causes(accident)) or found[0].id != accident.kind]
    assert len(missed) <= len(some) // 10, [(accident.kind, accident.base) for accident in missed]


@pytest.mark.slow
def test_two_wrong_numbers_are_never_likely_one() -> None:
    """No single number is called likely where two are wrong, or one that no candidate changes."""
    assert [(a.base, c.id) for a in TWICE for c in causes(a) if c.certainty == LIKELY] == []


def test_memory_that_rises_with_the_steps() -> None:
    """Readings that go up and down are no growth; those that only rise are."""
    line = "step: {}  loss: 2.1  memory: {:.2f}GiB(55.00%)"
    steady = "\n".join(line.format(n, 40 + n % 3) for n in range(40))
    rising = "\n".join(line.format(n, 40 + n / 4 + n % 3) for n in range(40))
    assert growth(steady) == 0
    assert growth(rising) > 3 * 2**30
    assert growth(rising[:200]) == 0
