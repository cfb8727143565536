"""What stderr says while a trace runs."""

from __future__ import annotations

import io
import signal
from itertools import count

import pytest

from memcheck.verify.observe import Interrupts, Progress


def run(*, terminal: bool) -> str:
    """A short trace, a second between any two things."""
    seconds = count()
    stream = io.StringIO()
    progress = Progress(stream, terminal=terminal, clock=lambda: next(seconds))
    progress.begin("rank 0 of 8", 32)
    progress.say("step 1 of 3")
    progress.at("forward", "model.layers.16.mlp")
    progress.at("loss", "lm_head")
    progress.end()
    return stream.getvalue()


def test_a_terminal_sees_one_line_that_changes() -> None:
    """With the layer, written over and gone at the end."""
    text = run(terminal=True)
    assert "\n" not in text
    parts = [part.rstrip() for part in text.split("\r") if part.strip()]
    assert parts == [
        "tracing rank 0 of 8: step 1 of 3",
        "tracing rank 0 of 8: step 1 of 3, forward, layer 17 of 32",
        "tracing rank 0 of 8: step 1 of 3, loss",
    ]
    assert text.endswith("\r")


def test_a_log_gets_a_line_per_step() -> None:
    """No control characters and no thousands of lines."""
    assert run(terminal=False) == "memcheck: tracing rank 0 of 8: step 1 of 3\n"


def test_the_first_interrupt_is_remembered_and_the_second_acts() -> None:
    """And the handler that was there before comes back."""
    before = signal.getsignal(signal.SIGINT)
    seen: list[bool] = []

    def work() -> None:
        with Interrupts() as interrupts:
            for _ in range(2):
                seen.append(interrupts.seen())
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert seen == [False, True]
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_that_nobody_asked_about_is_raised_at_the_end() -> None:
    """It must not be lost."""
    with pytest.raises(KeyboardInterrupt), Interrupts():
        signal.raise_signal(signal.SIGINT)
