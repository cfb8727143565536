"""Dotted changes fit the form in which the author wrote the plan."""

from __future__ import annotations

from memcheck.job.changes import apply, spelled, written
from tests.what_if.remedies.plans import REPLICATED, read


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
    change = {"training.optimizer.implementation": "fused"}
    whole = {"name": "adamw", "implementation": "fused"}
    assert spelled(short, change, None) == {"training.optimizer": whole}
    assert spelled(long, change, None) == change


def test_two_fields_of_a_short_form_are_one_value() -> None:
    """Changes of several fields do not write over each other."""
    change = {"training.optimizer.name": "adamw-8bit", "training.optimizer.offload": "cpu"}
    wanted = {"training.optimizer": {"name": "adamw-8bit", "offload": "cpu"}}
    assert spelled(read(REPLICATED), change, None) == wanted


def test_one_word_is_written_where_it_says_all() -> None:
    """A change of the main field alone stays short."""
    wanted = {"training.activation_checkpointing": "none"}
    assert spelled(read(REPLICATED), {"training.activation_checkpointing.mode": "none"}, None) == wanted


def test_written_reads_through_the_plan() -> None:
    """The value under a dotted key, or None where nothing is written."""
    assert written(read(REPLICATED), "hardware.gpus_per_node") == 8
    assert written(read(REPLICATED), "parallelism.tensor") is None
    assert written(read(REPLICATED), "model.overrides.x") is None
