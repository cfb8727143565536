"""Dotted changes fit the form in which the author wrote the plan."""

from __future__ import annotations

from memcheck.remedies.change import apply, setting, written
from tests.remedies.plans import REPLICATED, read


def test_apply_gives_a_typed_plan() -> None:
    """A change makes the sections that it needs."""
    changed = apply(read(REPLICATED), {"parallelism.zero_stage": 3})
    assert changed is not None
    assert changed[1].parallelism.zero_stage == 3


def test_an_invalid_change_is_no_plan() -> None:
    """A value that the schema refuses is not priced."""
    assert apply(read(REPLICATED), {"parallelism.zero_stage": 7}) is None


def test_short_forms_are_replaced_whole() -> None:
    """A key written as one word is replaced; of one written out, only the field is set."""
    short, long = read(REPLICATED), read(REPLICATED.replace("optimizer: adamw", "optimizer: {name: adamw}"))
    whole = {"name": "adamw", "implementation": "fused"}
    assert setting(short, "training.optimizer", "implementation", "fused", whole) == {"training.optimizer": whole}
    field = {"training.optimizer.implementation": "fused"}
    assert setting(long, "training.optimizer", "implementation", "fused", whole) == field


def test_written_reads_through_the_plan() -> None:
    """The value under a dotted key, or None where nothing is written."""
    assert written(read(REPLICATED), "hardware.gpus_per_node") == 8
    assert written(read(REPLICATED), "parallelism.tensor") is None
    assert written(read(REPLICATED), "model.overrides.x") is None
