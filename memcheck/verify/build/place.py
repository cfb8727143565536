"""Where a step is built."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from memcheck.record import Record


def _ready(model: nn.Module) -> None:
    """Do nothing: the model is ready."""


class DevicePlacement(Record):
    """Devices, and what has to happen between wrapping a model and making its optimizer."""

    device: str = "cpu"
    """Where the step runs."""
    model: str = "cpu"
    """Where the model is first made: ``meta`` when a whole one has no room on the device."""
    ready: Callable[[nn.Module], None] = _ready


HERE = DevicePlacement()
