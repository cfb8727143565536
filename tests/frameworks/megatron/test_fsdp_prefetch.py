"""What Megatron-FSDP gathers ahead of the layer that computes."""

from __future__ import annotations

import pytest

from memcheck.frameworks.megatron.fsdp import GatheredLayer, _prefetched_bytes

LAYERS = [
    GatheredLayer(elements=100, parameter_bytes=200, gradient_bytes=400),
    GatheredLayer(50, 100, 200),
    GatheredLayer(70, 140, 280),
]


@pytest.mark.parametrize(
    ("limit", "gathered"), [(0, 0), (1, 200), (100, 200), (101, 300), (150, 300), (151, 440), (999, 440)]
)
def test_whole_units_are_gathered_until_the_limit_is_reached(limit: int, gathered: int) -> None:
    """A unit is begun while fewer elements than the limit are gathered, and then gathered whole."""
    assert _prefetched_bytes(LAYERS, limit) == gathered
