"""open-instruct's preference loss, against traces of its own functions."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from benchmarks.objective_cases import plan
from memcheck.judge import Gate, check_file
from tests.benchmarks.test_masked_rows import LLAMA, MIB

DPO: dict[str, Any] = {**LLAMA, "objective": "dpo", "reference": "precomputed", "prompt_len": 0, "seq": 2048}
TRACED = (
    ({"opt_impl": "fused"}, 13760.136),
    ({"batch": 2, "seq": 1024, "recompute": "full"}, 10491.636),
    ({"recompute": "full", "trainer_autocast": True}, 10491.894),
    ({"objective": "simpo", "recompute": "full", "reference": None}, 10491.636),
)
"""Steps through ``concatenated_forward``, ``calculate_per_token_logps`` and ``dpo_loss`` (open-instruct e6c3044a) under
torch 2.13 and transformers 5.23 on fake tensors; MiB at the peak.
"""


@pytest.mark.parametrize(("knobs", "peak_mib"), TRACED)
def test_scores_of_every_token_are_priced(knobs: dict[str, object], peak_mib: float) -> None:
    """The logits in fp32 are the function's own; what is kept is their logarithm, of every token of both rows."""
    written = plan({**DPO, **knobs})
    written["training"] |= {"framework": "huggingface", "trainer": {"name": "open-instruct"}}
    written["training"].pop("loss", None)
    written["training"]["objective"].pop("prompt_length")
    (found,), traces = check_file("plan.yaml", yaml.safe_dump(written).encode(), Gate())
    assert not traces
    assert found.estimate is not None
    assert found.estimate.allocated_bytes == pytest.approx(peak_mib * MIB, rel=1e-4)
