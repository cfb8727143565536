"""Steps of models whose Python variables keep attention's tensors: every moment, against a traced step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.drawn import gaps, wide
from memcheck.accounts.program import Evaluated, Recorder
from memcheck.frameworks.torch.model_buffers import Variables

FILE = Path(__file__).with_name("traced_variables.json")
STEPS = {step["plan"]["name"]: step for step in json.loads(FILE.read_text(encoding="utf-8"))["steps"]}
OPEN = {
    "falcon-7b, reentrant recompute of adapters": {"backward": 0.013},
}
"""Moments that are predicted too high, and by how much."""


@pytest.mark.parametrize("name", STEPS)
def test_every_moment_is_predicted(name: str) -> None:
    """Within 1 %, and not more than 0.5 % too low: what the layer returns and what variables hold is counted."""
    record: dict[str, Any] = STEPS[name]
    (found,) = gaps(record).values()
    assert set(found) >= {"forward", "loss", "backward"}
    allowed = OPEN.get(name, {})
    far = wide(found)
    assert set(far) == set(allowed), found
    assert all(0 < far[moment] <= most for moment, most in allowed.items()), far


def test_a_variable_holds_what_it_was_assigned_last() -> None:
    """Another assignment lets go of what was there before, and the end of the forward of everything."""
    recorder = Recorder()
    variables = Variables(recorder)
    variables.assign("outputs", "activations", 1)
    variables.assign("outputs", "logits_and_loss", 2)
    variables.assign("inputs_embeds", "activations", 3)
    recorder.mark("forward", "held")
    variables.release_all()
    recorder.mark("loss", "let go of")
    program, sizes = recorder.program(3), (5, 3, 2)
    found = Evaluated(program, program.units(sizes), (sizes,))
    assert found.tops == (("forward", 5), ("loss", 0))
    assert {k: v for k, v in found.moment(0, "").live if v} == {"activations": 2, "logits_and_loss": 3}
