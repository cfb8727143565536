"""Adapters of layers that share a block: modules of their own over the same tensors."""

from benchmarks.asked import request_of
from benchmarks.drawn import predicted
from benchmarks.families import plans, records
from memcheck.accounts.ranks import Part
from memcheck.frameworks.torch.rank_units import part_units

ESM = "esm added, sdpa, full, bf16-lora"
NAME = "zamba2 added, sdpa, full, bf16-lora"


def gaps(name: str) -> list[float]:
    """Predicted over traced, minus one, of each moment."""
    (said,) = predicted(plans()[name]).values()
    return [said[moment] / seen - 1 for moment, seen in records()[name].items()]


def test_each_layer_of_a_shared_block_has_adapters() -> None:
    """As many adapters as peft makes: each hybrid layer's own, and idle ones of the other layers' low-rank pairs."""
    request = request_of(NAME, plans()[NAME])
    units = part_units(
        request.job, request.architecture, Part(first_layer=0, end_layer=4, has_embedding=True, has_head=True)
    )
    found = [[t for t in unit.tensors if ".lora_" in t.name] for unit in units]
    assert [len(tensors) for tensors in found] == [0, 4, 26, 4, 26, 0]
    assert sum(t.numel for tensors in found for t in tensors) == 2_155_008
    assert [sum(not t.trained for t in tensors) for tensors in found] == [0, 0, 4, 0, 4, 0]


def test_what_rests_is_what_was_traced() -> None:
    """Parameters and optimizer states of adapters on a shared block, and a clone that checkpoints hold."""
    assert all(abs(gap) < 1e-3 for gap in gaps(NAME))


def test_rows_that_are_scaled_leave_a_leaf() -> None:
    """ESM scales the looked-up rows: the leaf that enable_input_require_grads makes of them stays with the graph."""
    assert all(gap > -1e-3 for gap in gaps(ESM))
