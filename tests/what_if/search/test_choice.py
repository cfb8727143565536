"""Which remedies are offered, in which order, and how long a search for them may take."""

from __future__ import annotations

import pytest

from memcheck.memory.fit import RUNS, gpu_fit
from memcheck.plan.finding import CHEAP, ROLES, ROOMY
from memcheck.what_if.remedies.budget import Budget, BudgetSpentError
from memcheck.what_if.remedies.changes import HARDWARE, UNCHANGED, Priced
from memcheck.what_if.remedies.price import Pricer
from memcheck.what_if.search.fit import Fit
from memcheck.what_if.search.goals import search
from memcheck.what_if.search.rank import FULL, offered, roomy, shown, slow
from memcheck.what_if.search.space import singles
from tests.what_if.search.contexts import PIPELINED, TRAINING, context_of

NAMES = sorted(TRAINING)
FOUND: dict[str, list[Priced]] = {}


def remedies(name: str) -> list[Priced]:
    """What a quick search offers for a plan that does not fit."""
    if name not in FOUND:
        context = context_of(TRAINING[name])
        assert context.estimate is not None
        least = min(0.99, context.estimate.utilization * 0.9)  # so that each of them is too large for its limit
        FOUND[name] = Fit(Pricer(context._replace(fail_above=min(context.fail_above, least))), thorough=False).run()
    return FOUND[name]


@pytest.mark.parametrize("name", NAMES)
def test_same_results_come_by_time_and_then_by_edits(name: str) -> None:
    """What keeps results and hardware stands first, the fastest of it at the top."""
    found = remedies(name)
    assert found
    same = [p for p in found if p.candidate.cost == UNCHANGED]
    assert found[: len(same)] == same
    times = [round(p.slowdown or 0.0, 2) for p in same]
    assert times == sorted(times)


@pytest.mark.parametrize("name", NAMES)
def test_each_role_is_had_once_and_means_what_it_says(name: str) -> None:
    """The cheap one is the first; the roomy one leaves a fifth of the GPU free with its whole interval."""
    found = remedies(name)
    roles = [p.role for p in found if p.role]
    assert len(roles) == len(set(roles))
    assert set(roles) <= set(ROLES)
    assert found[0].role in ROLES
    for each in found:
        if each.role == ROOMY:
            assert each.sure
            assert each.estimate.utilization <= FULL


@pytest.mark.parametrize("name", NAMES)
def test_nothing_takes_twice_as_long_while_something_else_does_not(name: str) -> None:
    """A slow way to keep the results is offered only where there is no other one on any hardware."""
    found = remedies(name)
    others = [p for p in found if not slow(p) and p.candidate.cost in (UNCHANGED, HARDWARE)]
    assert not others or not any(map(slow, found))


def test_what_need_not_be_priced_is_not_the_emptiest() -> None:
    """Leaving out changes whose states alone need more than another change does in all finds what pricing all finds."""
    left_out = 0
    for name in NAMES:
        context = context_of(TRAINING[name])
        every = Pricer(context._replace(fail_above=0.05))
        candidates = singles(context)
        priced = [p for each in candidates if (p := every.price(each, prune=False)) is not None]
        best = min(priced, key=every.pressure)
        bounded = Fit(Pricer(context._replace(fail_above=0.05)), thorough=False)
        found = bounded.emptiest(candidates)
        assert found is not None
        assert (found.candidate, found.estimate) == (best.candidate, best.estimate), name
        left_out += bounded.pricer.tally.below_floor
    assert left_out


def test_slow_ones_give_way_and_places_are_kept() -> None:
    """Of made-up times: what takes three times as long goes, and what has a role keeps its place among few."""
    some = remedies("pipelined")[0]._replace(role="")
    three, twice, once = (some._replace(slowdown=time) for time in (2.0, 1.0, 0.1))
    assert [p.slowdown for p in offered([three, twice, once])] == [0.1, 1.0]
    assert [p.slowdown for p in offered([three])] == [2.0]
    listed = [once._replace(role=CHEAP), twice, twice, once._replace(role=ROOMY)]
    assert [p.role for p in shown(listed, 2)] == [CHEAP, ROOMY]
    assert [p.role for p in shown(listed, 3)] == [CHEAP, "", ROOMY]


@pytest.mark.parametrize("name", NAMES)
def test_no_plan_with_the_same_keys_is_much_faster(name: str) -> None:
    """The values of the keys that the first remedy sets are the fastest ones that fit."""
    first = remedies(name)[0]
    if first.candidate.cost != UNCHANGED:
        return
    context = context_of(TRAINING[name])
    assert gpu_fit(first.estimate, context.fail_above) in RUNS
    pricer = Pricer(context)
    pricer.sets_only(first.changes)
    best = search(pricer, "throughput", 1).found
    assert best
    assert 1 + (first.slowdown or 0.0) <= 1.15 * (1 + (best[0].slowdown or 0.0))


def test_a_budget_is_given_out_in_parts() -> None:
    """What is used up ends the part without an error; the whole goes on, and knows that something was cut short."""
    whole = Budget(1000)
    with whole.part(0):
        whole.check()
        raise AssertionError
    assert whole.spent
    whole.check()
    with pytest.raises(BudgetSpentError):
        Budget(-1).check()
    Budget().check()


@pytest.mark.slow
@pytest.mark.parametrize("goal", ["fit", "throughput", "gpus", "max-batch", "max-sequence"])
def test_without_time_nothing_is_searched_and_nothing_fails(goal: str) -> None:
    """An answer is given all the same, and claims no proof."""
    pricer = Pricer(context_of(PIPELINED))
    pricer.budget = Budget(0)
    answer = search(pricer, goal)
    assert not answer.found
    assert not answer.exhausted
    assert pricer.budget.spent


def test_roomy_wants_a_sure_plan() -> None:
    """A plan whose interval reaches beyond the GPU leaves no room, however little it needs."""
    some = remedies("pipelined")[0]
    narrow = some.estimate._replace(cache_bytes=0, device_bytes=10, capacity_bytes=100, needed_interval_bytes=(5, 20))
    assert roomy(some._replace(estimate=narrow))
    assert not roomy(some._replace(estimate=narrow._replace(needed_interval_bytes=(5, 101))))
    assert not roomy(some._replace(estimate=narrow._replace(device_bytes=81)))
