"""Reentrant recompute is a frame of Python around the backward of a layer, which holds what other recompute does not."""

from __future__ import annotations

import pytest

from benchmarks.engine_speed import plan, resolved
from memcheck.frameworks.torch.rank_steps import Steps, states_of, step_key
from memcheck.job.keys import state_key
from memcheck.job.types import Checkpointing, TrainingJob

MODEL, ROWS, HIDDEN = "llama-3.1-8b", 4 * 2048, 4096


def moment(name: str, *, reentrant: bool) -> int:
    """The highest bytes of an instant of a step with eager attention, whose scores are the largest by far."""
    job = resolved(
        plan(MODEL, 1, "pytorch", attention="eager", micro_batch_size=4, sequence_length=2048, loss="chunked")
    ).job
    assert isinstance(job, TrainingJob)
    job = job._replace(checkpointing=Checkpointing("full", reentrant=reentrant))
    steps = Steps(step_key(job, "2.13"), job.architecture)  # type: ignore[arg-type]
    peak = steps.peak(0, states_of(state_key(job)))
    return dict(peak.tops)[name]


def test_outputs_and_the_gradient_that_came_in_are_held() -> None:
    """Two residual streams more in backward: the recomputed output, and a sum that is not made in place."""
    more = moment("backward", reentrant=True) - moment("backward", reentrant=False)
    assert more == 2 * 4 * ROWS * HIDDEN


@pytest.mark.parametrize("name", ["forward", "optimizer"])
def test_nothing_else_is(name: str) -> None:
    """Before and behind backward the step is the same."""
    assert moment(name, reentrant=True) == moment(name, reentrant=False)
