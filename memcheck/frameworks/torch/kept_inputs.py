"""What a graph holds of recomputed layers whose own weights are frozen."""

from __future__ import annotations

from collections.abc import Sequence

from memcheck.accounts.program import Recorder
from memcheck.frameworks.torch.step_parts import NamedUnit


def hold_inputs(
    recorder: Recorder, units: Sequence[NamedUnit], index: int, times: int, kept: list[tuple[int, int]]
) -> None:
    """A frozen unit's input, and the gradient of its output."""
    unit = units[index]
    behind = index + 1 < len(units) and units[index + 1].adapted
    for size in [unit.fresh.input, unit.fresh.output_gradient] if behind else [unit.fresh.input]:
        recorder.hold("activations", size)
        kept.append((size, times))
