"""Published readings by kind of training."""

from __future__ import annotations

import pytest

from benchmarks import outcomes
from benchmarks.cases import load
from benchmarks.readings import kind_of, wrong


@pytest.mark.parametrize(
    ("training", "kind"),
    [
        ({}, "full"),
        ({"method": "lora"}, "LoRA"),
        ({"method": "lora", "base": "int8"}, "QLoRA and int8"),
        ({"method": "qlora"}, "QLoRA and int8"),
        ({"method": "qlora", "objective": {"name": "dpo"}}, "preference"),
        ({"objective": "simpo"}, "preference"),
    ],
)
def test_each_reading_is_of_one_kind(training: dict[str, object], kind: str) -> None:
    """The objective decides first, then how the base is held, then what is trained."""
    assert kind_of({"training": training}) == kind


@pytest.mark.slow
def test_each_wrong_verdict_is_named() -> None:
    """With the tensor that is missing, or with what its source does not say."""
    found = wrong(outcomes.judged(job) for job in outcomes.outcomes())
    assert found
    assert not [v.outcome.id for v in found if not (load("wrong.json").get(v.outcome.id) or v.outcome.assumption)]
