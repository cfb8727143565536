"""Whole checks of inputs that nobody wrote."""

from __future__ import annotations

import pytest

from benchmarks.fuzz_check import Outcome, faults_of, in_fresh_process, run
from benchmarks.hostile_draw import KINDS, draw_input


@pytest.mark.slow
def test_no_input_misbehaves() -> None:
    """Broken, extreme and valid inputs of every kind end in a verdict or a located error, and print no control character.

    ``python -m benchmarks.fuzz_check`` draws thousands.
    """
    found = {number: run(draw_input(0, number)) for number in range(80)}
    kinds = {draw_input(0, number).kind for number in found}
    assert kinds == set(KINDS)
    assert {
        number: outcome for number, outcome in found.items() if set(outcome.faults) & {"defect", "unjudged", "unclean"}
    } == {}


@pytest.mark.parametrize(
    ("code", "cpu_s", "peak_mb", "out", "faults"),
    [
        (1, 0.1, 30, "{}", ()),
        (3, 0.1, 30, "{}", ("defect",)),
        (1, 1.1, 30, "{}", ("slow",)),
        (1, 0.1, 300, "{}", ("large",)),
        (0, 0.1, 30, '{"plans": []}', ("unjudged",)),
        (0, 0.1, 30, '{"plans": [{"estimate": null}]}', ("unjudged",)),
        (0, 0.1, 30, '{"plans": [{"estimate": {"device_bytes": 0, "parameters": 1}}]}', ("unjudged",)),
        (0, 0.1, 30, '{"plans": [{"estimate": {"device_bytes": 1, "parameters": 1}}]}', ()),
        (1, 0.1, 30, "a\x1b[31m", ("unclean",)),
        (1, 0.1, 30, "a\u202eb", ("unclean",)),
    ],
)
def test_what_counts_as_misbehaving(code: int, cpu_s: float, peak_mb: int, out: str, faults: tuple[str, ...]) -> None:
    """A defect, too much time or memory, a pass without an estimate, and control characters are each found."""
    assert faults_of(code, cpu_s, peak_mb, out) == faults


@pytest.mark.slow
def test_an_input_can_be_had_again() -> None:
    """An input is a function of its seed and number, whatever was drawn before, and ends alike in another process."""
    given = draw_input(7, 11)
    for number in range(300):
        draw_input(8, number)
    assert given == draw_input(7, 11)
    again: Outcome = in_fresh_process(7, 11)
    assert again.code == run(given).code
