"""Sums under autocast are in fp32, and what they are joined to is as wide; steps held against what was traced."""

from typing import Any

import pytest

from benchmarks.drawn import predicted
from benchmarks.families import plans
from memcheck.autograd.operator import sum_groups
from memcheck.autograd.tensor import Tape

STEP: dict[str, Any] = {
    "framework": "pytorch",
    "torch_version": "2.13",
    "micro_batch_size": 1,
    "sequence_length": 1000,
    "precision": "fp16-mixed",
    "optimizer": {"name": "adamw", "implementation": "fused"},
    "attention": "sdpa",
    "loss": {"kind": "standard", "keep_logits": False},
    "freeze": ["embed"],
}
ADAPTED: dict[str, Any] = {
    "framework": "huggingface",
    "torch_version": "2.13",
    "micro_batch_size": 2,
    "sequence_length": 1000,
    "precision": "bf16-mixed",
    "optimizer": {"name": "sgd"},
    "activation_checkpointing": {"mode": "full", "reentrant": True},
    "attention": "sdpa",
    "loss": {"kind": "standard", "keep_logits": True},
    "method": "lora",
    "lora": {"rank": 8, "dtype": "fp32", "target_modules": ["q_proj", "v_proj"]},
}


def moments(kind: str, training: dict[str, Any]) -> dict[str, int]:
    """Predicted bytes of each moment of a step of a small model."""
    base = next(plan for name, plan in plans().items() if name.startswith(f"{kind} added,"))
    (said,) = predicted({**base, "training": training}).values()
    return dict(said)


@pytest.mark.parametrize(("autocast", "wide"), [("bf16", "fp32"), (None, "bf16")])
def test_sums_are_fp32_under_autocast(autocast: str | None, wide: str) -> None:
    """The sum over a token's experts of bf16 rows is fp32 where autocast asks for it, and bf16 elsewhere."""
    tape = Tape(autocast=autocast)
    assert sum_groups(tape, tape.value((8, 16), "bf16", "rows"), 2).dtype == wide


@pytest.mark.parametrize(
    ("mode", "forward", "backward", "slack"),
    [("none", 1_847_300_608, 1_896_998_912, 0.01), ("full", 1_084_157_952, 1_318_328_832, 0.001)],
)
def test_compressed_keys_widen_all_keys(mode: str, forward: int, backward: int, slack: float) -> None:
    """DeepSeek V4 under autocast: fp32 keys of windows make every key fp32, whose copies for all heads are saved, and
    the streams to which a layer's output is added stay fp32.
    """
    found = moments("deepseek_v4", {**STEP, "activation_checkpointing": mode})
    assert -0.001 < found["forward"] / forward - 1 < 0.003
    assert -slack < found["backward"] / backward - 1 < slack


def test_experts_of_narrow_weights() -> None:
    """ERNIE 4.5's experts under adapters in bf16 and autocast: their outputs add up in fp32."""
    found = moments("ernie4_5_moe", ADAPTED)
    assert abs(found["forward"] / 1_075_407_360 - 1) < 0.001
    assert found["backward"] / 1_328_349_184 - 1 > -0.001
