"""ZeRO-3's coordinator, replayed by hand: modules of one parameter of ten elements each."""

from __future__ import annotations

from memcheck.frameworks.deepspeed.gathering import GatheredMost, GatheredWeight, GatherLimits, gathered

PLAIN = GatheredWeight(10, persists=False, is_kept=False)
UNITS = tuple(((number,),) for number in range(4))
NEXT = GatherLimits(ways=2, ahead=0, live=10**9, reuse=0, one_by_one=False)
"""Nothing is fetched ahead, and all is let go of at once."""


def test_one_module_at_a_time() -> None:
    """Each is there while it runs; the last one's backward comes right behind its forward."""
    assert gathered((PLAIN,) * 4, UNITS, NEXT, recompute=False) == GatheredMost(10, 10, 10)


def test_what_is_used_again_soon_stays() -> None:
    """Within thirty elements: the last two modules stay for backward, and the others come alone again."""
    near = NEXT._replace(reuse=30)
    assert gathered((PLAIN,) * 4, UNITS, near, recompute=False) == GatheredMost(20, 20, 10)
    assert gathered((PLAIN,) * 4, UNITS, NEXT._replace(reuse=1000), recompute=False) == GatheredMost(40, 40, 30)


def test_several_come_in_one_buffer() -> None:
    """It is there until the last of them is used, beside their copies: here two such, and the first one's copies. One
    by one each is its own.
    """
    ahead = NEXT._replace(ahead=20)
    assert gathered((PLAIN,) * 4, UNITS, ahead, recompute=False).forward == 60
    assert gathered((PLAIN,) * 4, UNITS, ahead._replace(one_by_one=True), recompute=False).forward == 40


def test_no_more_is_fetched_ahead_than_may_live() -> None:
    """A limit of a single module leaves no room."""
    ahead = NEXT._replace(ahead=20, live=10, one_by_one=True)
    assert gathered((PLAIN,) * 4, UNITS, ahead, recompute=False) == GatheredMost(10, 10, 10)


def test_persistent_parameters_are_counted_elsewhere() -> None:
    """They rest on every rank, whole."""
    stays = PLAIN._replace(persists=True)
    assert gathered((stays,) * 4, UNITS, NEXT, recompute=False) == GatheredMost()


def test_saved_storages_outlive_their_release() -> None:
    """Of an expert's matrix autograd has saved a view: backward gathers it a second time."""
    kept = (PLAIN, PLAIN._replace(is_kept=True), PLAIN._replace(is_kept=True), PLAIN)
    assert gathered(kept, UNITS, NEXT, recompute=False) == GatheredMost(30, 30, 30)


def test_units_in_front_of_what_is_trained_have_no_backward() -> None:
    """What only these would use again is let go of in forward."""
    far = NEXT._replace(reuse=1000)
    assert gathered((PLAIN,) * 4, UNITS, far, recompute=False, idle=2) == GatheredMost(20, 20, 10)


def test_recomputed_units_run_twice_in_backward() -> None:
    """Their modules are all used again before the first of them is let go of."""
    layers = (((0,),), ((1,), (2,)), ((3,),))
    near = NEXT._replace(reuse=30)
    assert gathered((PLAIN,) * 4, layers, near, recompute=True).backward == 20
