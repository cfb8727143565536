"""T5Gemma: two stacks that read words from tables of their own."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.added import added
from memcheck.families.registry import read_architecture
from memcheck.models.parameters import count_parameters
from memcheck.models.reader import ArchitectureError

CONFIG: dict[str, Any] = added()["t5gemma"]["config"]


def test_each_stack_has_its_words() -> None:
    """A word more in the encoder's vocabulary is a row of its table alone."""
    found = read_architecture(CONFIG)
    more = {**CONFIG["encoder"], "vocab_size": CONFIG["encoder"]["vocab_size"] + 1}
    other = read_architecture({**CONFIG, "encoder": more})
    assert count_parameters(other) - count_parameters(found) == found.hidden_size


def test_stacks_of_different_widths_are_refused() -> None:
    """The 9B encoder in front of the 2B decoder has no memory model."""
    wider = {**CONFIG["encoder"], "hidden_size": 1024}
    with pytest.raises(ArchitectureError, match="1024 and a decoder 512 wide") as caught:
        read_architecture({**CONFIG, "encoder": wider})
    assert caught.value.key == "encoder"


def test_a_key_of_a_stack_that_nobody_read_is_refused() -> None:
    """What is written in a section is read as strictly as what is written at the top."""
    strange = {**CONFIG["decoder"], "num_experts": 8}
    with pytest.raises(ArchitectureError, match="num_experts"):
        read_architecture({**CONFIG, "decoder": strange}, strict=True)
