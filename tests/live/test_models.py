"""A model by its name and by a pasted ``config.json``: the same answer, and both can be put into any plan."""

from __future__ import annotations

import json
from typing import Any

import pytest

from memcheck.catalog.names import find_model, model_names
from memcheck.live.protocol import Session

EVERY = model_names()
SOME = EVERY[:: max(1, len(EVERY) // 30)][:30]
PLAN = """memcheck: 1
name: pasted
model: {}
hardware:
  gpu: h200
  gpus_per_node: 8
parallelism:
  zero_stage: 3
training:
  micro_batch_size: 1
  sequence_length: 512
"""


def first(session: Session, request: dict[str, Any]) -> dict[str, Any]:
    """The verdict of one request."""
    return next(session.handle(request))


@pytest.mark.parametrize("name", SOME)
def test_a_pasted_config_answers_as_the_name_does(name: str) -> None:
    """The same figures and findings, from the file and from the plan that holds its text, as a link needs it."""
    session = Session()
    named = first(session, {"id": 1, "do": "answer", "path": "plan.yaml", "text": PLAN.format(name)})
    config = find_model(name).config
    file = {"config.json": json.dumps(config)}
    pasted = first(session, {"id": 2, "do": "set", "changes": {"model": {"config": "config.json"}}, "files": file})
    whole = first(session, {"id": 3, "do": "set", "changes": {"model": {"architecture": config}}})
    assert pasted["step"] == whole["step"] == "first"
    for other in (pasted, whole):
        assert other["figures"] == named["figures"]
        assert [each["code"] for each in other["diagnostics"]] == [each["code"] for each in named["diagnostics"]]
    assert named["figures"] is not None or named["diagnostics"]


def test_there_are_thirty_models() -> None:
    """The sample is not empty, and most of it is estimated."""
    assert len(SOME) == 30
