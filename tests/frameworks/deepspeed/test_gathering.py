"""ZeRO-3's coordinator, replayed by hand: modules of one parameter of ten elements each."""

from __future__ import annotations

from memcheck.accounts.state import LocalTensor
from memcheck.frameworks.deepspeed.gathering import (
    GatheredMost,
    GatheredWeight,
    GatherLimits,
    Module,
    ModuleUnit,
    gathered,
    module_units,
)

PLAIN = GatheredWeight(10, is_never_released=False, autograd_saves_view=False)


def unit(*numbers: int, layer: bool = False) -> ModuleUnit:
    """Modules one behind the other, in a layer or at an end of the model."""
    return ModuleUnit((Module((), numbers),) if layer else (), tuple((Module((n,), (n,)),) for n in numbers))


UNITS = (unit(0), unit(1, layer=True), unit(2, layer=True), unit(3))
NEXT = GatherLimits(
    ranks=2, prefetch_elements=0, max_live_elements=10**9, max_reuse_elements=0, gathers_one_by_one=False
)
"""Nothing is fetched ahead, and all is let go of at once."""


def test_one_module_at_a_time() -> None:
    """Each is there while it runs; the last one's backward comes right behind its forward."""
    assert gathered((PLAIN,) * 4, UNITS, NEXT, recompute=False) == GatheredMost(10, 10, 10, 10)


def test_what_is_used_again_soon_stays() -> None:
    """Within thirty elements: the last two modules stay for backward, and the others come alone again."""
    near = NEXT._replace(max_reuse_elements=30)
    assert gathered((PLAIN,) * 4, UNITS, near, recompute=False) == GatheredMost(20, 20, 10, 10)
    assert gathered((PLAIN,) * 4, UNITS, NEXT._replace(max_reuse_elements=1000), recompute=False) == GatheredMost(
        40, 40, 30, 10
    )


def test_several_come_in_one_buffer() -> None:
    """It is there until the last of them is used, beside their copies: here two such, and the first one's copies. One
    by one each is its own.
    """
    prefetch = NEXT._replace(prefetch_elements=20)
    assert gathered((PLAIN,) * 4, UNITS, prefetch, recompute=False).forward == 60
    assert gathered((PLAIN,) * 4, UNITS, prefetch._replace(gathers_one_by_one=True), recompute=False).forward == 40


def test_no_more_is_fetched_ahead_than_may_live() -> None:
    """A limit of a single module leaves no room."""
    prefetch = NEXT._replace(prefetch_elements=20, max_live_elements=10, gathers_one_by_one=True)
    assert gathered((PLAIN,) * 4, UNITS, prefetch, recompute=False) == GatheredMost(10, 10, 10, 10)


def test_persistent_parameters_are_counted_elsewhere() -> None:
    """They rest on every rank, whole."""
    stays = PLAIN._replace(is_never_released=True)
    assert gathered((stays,) * 4, UNITS, NEXT, recompute=False) == GatheredMost()


def test_saved_storages_outlive_their_release() -> None:
    """Of an expert's matrix autograd has saved a view: backward gathers it a second time."""
    kept = (PLAIN, PLAIN._replace(autograd_saves_view=True), PLAIN._replace(autograd_saves_view=True), PLAIN)
    assert gathered(kept, UNITS, NEXT, recompute=False) == GatheredMost(30, 30, 30, 10)


def test_units_in_front_of_what_is_trained_have_no_backward() -> None:
    """What only these would use again is let go of in forward."""
    far = NEXT._replace(max_reuse_elements=1000)
    assert gathered((PLAIN,) * 4, UNITS, far, recompute=False, without_backward=2) == GatheredMost(20, 20, 10, 0)


def test_recomputed_units_run_twice_in_backward() -> None:
    """Their modules are all used again before the first of them is let go of."""
    layers = (unit(0), unit(1, 2, layer=True), unit(3))
    near = NEXT._replace(max_reuse_elements=30)
    assert gathered((PLAIN,) * 4, layers, near, recompute=True).backward == 20


def test_a_leaf_is_fetched_whole_and_its_distance_counts_all_that_is_beneath_modules() -> None:
    """Both of its parameters come in one buffer. The model's own module, right behind the forward, has them beneath it:
    within twenty elements the leaf stays, where two modules of its parameters go.
    """
    leaf = ModuleUnit((Module((), (1, 2)),), ((Module((), (1, 2), is_leaf=True),),))
    units = (unit(0), leaf, unit(3))
    assert gathered((PLAIN,) * 4, units, NEXT, recompute=False) == GatheredMost(40, 10, 40, 10)
    near = NEXT._replace(max_reuse_elements=20)
    assert gathered((PLAIN,) * 4, units, near, recompute=False).head == 30
    apart = (unit(0), unit(1, 2, layer=True), unit(3))
    assert gathered((PLAIN,) * 4, apart, near, recompute=False).head == 10


def test_what_looks_up_rows_stays_to_the_end_of_the_backward() -> None:
    """Token ids have no gradient behind which a hook could let go of a table: two of them are there at once."""
    units = (unit(0, 1), unit(2, layer=True), unit(3))
    assert gathered((PLAIN,) * 4, units, NEXT, recompute=False).end == 20


def names(*found: str) -> list[LocalTensor]:
    """Parameters of one unit."""
    return [LocalTensor(name, (10,), trained=True, expert=".experts." in name) for name in found]


def test_modules_are_told_by_the_names_of_their_parameters() -> None:
    """A norm before attention and before a sparse block, which is one leaf; the layer's own module is first, and an
    original beside its trained copy is none.
    """
    layer = names("self_attn.q_proj.weight", "mlp.gate.weight", "mlp.experts.up", "norm_1.weight", "norm_2.weight")
    ends = names("table.weight", "table.modules_to_save.weight"), names("lm_head.weight")
    first, block, last = module_units([ends[0], layer, ends[1]], leaves=True, tied=False)
    assert [module.own_parameters for module in block.forward] == [(5,), (), (2,), (6,), ()]
    assert block.forward[-1] == Module((), (3, 4), is_leaf=True)
    assert block.backward[0] == Module((), (2, 3, 4, 5, 6))
    assert (first.all_parameters, last.all_parameters) == ((1,), (7,))


def test_adapters_run_behind_what_they_adapt() -> None:
    """PEFT's module, the layer, a dropout, and both matrices."""
    layer = names("self_attn.q_proj.weight", "self_attn.q_proj.lora_A", "self_attn.q_proj.lora_B")
    _, block, _ = module_units([[], layer, []], leaves=False, tied=False)
    assert [module.own_parameters for module in block.forward] == [(), (), (0,), (), (1,), (2,)]
