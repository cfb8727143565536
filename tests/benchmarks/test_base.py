"""Steps traced with bitsandbytes', peft's and Liger's own code, and priced again without them."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.base_cases import GROUPS
from benchmarks.cases import load
from benchmarks.score import answer
from memcheck.autograd.modules import MULTIPROCESSORS_MOST

MOST_COLUMNS = 4096
"""Of a norm in any case. The tracer stands for a GPU of one multiprocessor, and the estimate for one of the most."""

pytestmark = pytest.mark.slow

CASES: dict[str, dict[str, Any]] = {case["id"]: case for name in GROUPS for case in load(name)["cases"]}


@pytest.mark.parametrize("name", CASES)
def test_every_moment_is_the_traced_one(name: str) -> None:
    """Each instant of the step is within 0.1 % of the trace's, or above it by what is counted longer than it lives.

    That are the rows that Liger's norms add up, and those that nanotron's Qwen 2 looks up, which go before the loss.
    """
    said = {instant.name: instant.allocated_bytes for instant in answer(CASES[name]["plan"]).ranks[0].instants}
    for instant, traced in CASES[name]["instants_bytes"].items():
        training = CASES[name]["plan"]["training"]
        above = MULTIPROCESSORS_MOST * MOST_COLUMNS * 4 if "kernels" in training else 0
        if instant == "loss" and training.get("options", {}).get("model_class") == "qwen2":
            above = training["micro_batch_size"] * training["sequence_length"] * MOST_COLUMNS
        assert -0.001 * traced < said[instant] - traced < max(0.001 * traced, above), instant
