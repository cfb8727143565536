"""What ``--formulas`` says of units in flight."""

from __future__ import annotations

import pytest

from memcheck.memory.estimate import estimate
from tests.memory.jobs import BIG_GPU, job, llama_8b


@pytest.mark.parametrize(("layers", "name"), [(1, "layer 0: 1 x "), (4, "layer 0 to layer 3: 4 x ")])
def test_a_run_of_alike_units_is_named_by_its_ends(layers: int, name: str) -> None:
    """One unit has one name, and several have the first's and the last's."""
    found = estimate(job(llama_8b(layers)), BIG_GPU, inventory=True).formulas
    named = [each.numbers for each in found if each.component == "activations"]
    assert [each for each in named if each.startswith(name)], named
