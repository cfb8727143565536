"""torchtitan's own code, traced where it can be imported (its commit b5bcd76c6)."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("torchtitan")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

from memcheck.families.registry import catalog_architecture  # noqa: E402
from memcheck.verify.build.torchtitan import model_spec  # noqa: E402
from memcheck.verify.compare import RefusedStepError  # noqa: E402
from tests.verify.plans import plan  # noqa: E402
from tests.verify.running import traced  # noqa: E402

SHARDED: dict[str, Any] = {
    "gpus": 8,
    "framework": "torchtitan",
    "precision": "bf16-mixed",
    "micro_batch_size": 1,
    "sequence_length": 8192,
}
EIGHT = {"name": "llama-3.1-8b", "overrides": {"num_hidden_layers": 3}}
EXPERTS = {"name": "qwen3-30b-a3b", "overrides": {"num_hidden_layers": 2}}

PLANS = {
    "FSDP2": plan(**SHARDED, model=EIGHT, parallelism={"zero_stage": 3}),
    "op-selective recompute, chunked loss": plan(
        **SHARDED,
        model=EIGHT,
        parallelism={"zero_stage": 3},
        activation_checkpointing="selective",
        loss={"kind": "chunked", "chunks": 8},
    ),
    "FSDP2 and tensor": plan(**SHARDED, model=EIGHT, parallelism={"zero_stage": 3, "tensor": 4}),
    "a pipeline over tensor ranks": plan(
        **SHARDED, model=EIGHT, parallelism={"zero_stage": 3, "pipeline": 2, "tensor": 2}, gradient_accumulation_steps=2
    ),
    "experts over ranks": plan(**SHARDED, model=EXPERTS, parallelism={"zero_stage": 3, "expert": 8}),
}


@pytest.mark.parametrize("name", PLANS)
def test_estimate_and_trace_agree(name: str) -> None:
    """Nothing stands in for torchtitan, and its peak is predicted within 1.5 %."""
    request, _, comparisons = traced(PLANS[name])
    assert request.replaced == ()
    assert request.job.framework.name == "torchtitan"
    for comparison in comparisons:
        assert comparison.agrees(), (comparison.error, comparison.terms[:3])


def test_a_model_that_torchtitan_does_not_have_is_refused() -> None:
    """With the way to verify it in plain PyTorch."""
    with pytest.raises(RefusedStepError, match="torchtitan has no gemma") as error:
        model_spec(catalog_architecture("gemma-2b"))
    assert "training.framework=pytorch" in error.value.help


def test_sizes_are_the_plans() -> None:
    """Odd heads and widths, which no flavor of torchtitan's has."""
    sizes = {"hidden_size": 1152, "num_attention_heads": 12, "num_key_value_heads": 3, "head_dim": 96}
    model = {"name": "llama-3.1-8b", "overrides": {**sizes, "num_hidden_layers": 2, "intermediate_size": 5000}}
    request, _, (comparison,) = traced(plan(**SHARDED, model=model, parallelism={"zero_stage": 3, "tensor": 1}))
    assert request.job.framework.name == "torchtitan"
    assert comparison.agrees(), (comparison.error, comparison.terms[:3])
