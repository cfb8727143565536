"""Pipelines: how long the slowest rank waits."""

from __future__ import annotations

import pytest

from tests.timing.plans import timed


def share(schedule: str, micro_batches: int, **keys: object) -> float:
    """Bubble over the time in which the slowest rank works."""
    time = timed(
        "llama-3.1-70b",
        64,
        tensor=8,
        pipeline=4,
        pipeline_schedule=schedule,
        gradient_accumulation_steps=micro_batches,
        zero_stage=3,
        **keys,
    )
    return time.bubble_seconds / (time.seconds - time.bubble_seconds)


def test_more_micro_batches_shrink_the_bubble() -> None:
    """1F1B: (p - 1) / m of the work, for stages that are alike."""
    assert share("1f1b", 8) == pytest.approx(3 / 8, rel=0.2)
    assert share("1f1b", 16) == pytest.approx(share("1f1b", 8) / 2, rel=0.1)


def test_gpipe_waits_as_long_as_1f1b() -> None:
    """GPipe differs in memory, not in time."""
    assert share("gpipe", 8) == share("1f1b", 8)


def test_virtual_stages_divide_the_bubble() -> None:
    """Interleaved 1F1B with two chunks a rank waits half as long."""
    plain, interleaved = share("1f1b", 8), share("interleaved-1f1b", 8, virtual_stages=2)
    assert interleaved == pytest.approx(plain / 2, rel=0.1)


def test_zero_bubble_and_dualpipe_wait_less() -> None:
    """Weight gradients fill the bubble; DualPipe feeds from both ends."""
    assert share("dualpipe", 8) < share("zero-bubble", 8) < share("1f1b", 8)


def test_dualpipe_needs_two_micro_batches_per_rank() -> None:
    """With fewer there is nothing to feed both ends with: no better than zero-bubble; one micro-batch fills nothing."""
    assert share("dualpipe", 4) == share("zero-bubble", 4)
    assert share("zero-bubble", 1) > 1.5
    assert share("zero-bubble", 1) < share("1f1b", 1)


def test_dualpipe_of_torch_is_v_shaped() -> None:
    """DualPipeV: (p - 1) / 2 of a forward pass, two backward passes less three of the weights' gradients, which is half
    of the wait of 1F1B, less what the weights' gradients fill.
    """
    waits = [share(schedule, 16) for schedule in ("1f1b", "dualpipe")]
    assert 0.1 < waits[1] / waits[0] < 0.5
