"""Compiled blocks and losses keep what the partitioner was traced to keep."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest

from memcheck.autograd.curve import Curve
from memcheck.frameworks.torchtune.profile import FRAMEWORK as TORCHTUNE
from memcheck.frameworks.transformers.head import Head, head_curve
from memcheck.job.types import Loss
from tests.frameworks.torch.partitioned import DATA, SIZES, TOKENS, VOCABULARY, traced
from tests.frameworks.transformers.layers import TITAN, TORCHTITAN, TRANSFORMERS, curve_of

RECORDED = json.loads(DATA.read_text())
CASES = pytest.mark.parametrize("case", list(RECORDED["blocks"]))
RANDOM_STATE = 24
"""Seed and offset that the flash kernel returns."""


def _curve(case: str, **setting: Any) -> Curve:
    name, mode = case.split("/")
    hidden, width, heads, kv_heads = SIZES[name]
    config = {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": False,
    }
    if mode == "torchtune":
        mode, setting = "none", {"style": TORCHTUNE.style, "attention": "flex", **setting}
    return curve_of(config, recompute=mode, **{**TORCHTITAN, "sequence": TOKENS, "compiled": True, **setting})


@CASES
def test_a_compiled_block_keeps_what_the_partitioner_keeps(case: str) -> None:
    """Beside its input, to the byte."""
    kept = sum(size for _, size in RECORDED["blocks"][case])
    block_input = 2 * TOKENS * SIZES[case.partition("/")[0]][0]
    assert _curve(case).saved_bytes - block_input == kept - RANDOM_STATE


@CASES
def test_a_compiled_block_never_needs_more_than_an_eager_one(case: str) -> None:
    """Kept less, and reached no higher where activations are more than gradients."""
    compiled, eager = (_curve(case, sequence=16384, compiled=each) for each in (True, False))
    assert compiled.saved_bytes < eager.saved_bytes
    assert compiled.forward_peak.bytes <= eager.forward_peak.bytes
    assert compiled.backward_peak.bytes <= eager.backward_peak.bytes
    assert compiled.gradient_bytes == eager.gradient_bytes, "the same parameters have gradients"


@pytest.mark.parametrize("setting", [{"tensor_parallel": 2}, {"frozen_modules": ("mlp",)}, {"style": TRANSFORMERS}])
def test_what_was_not_traced_counts_as_uncompiled(setting: dict[str, Any]) -> None:
    """Tensor parallelism, frozen parts and other frameworks' blocks keep what they keep uncompiled."""
    case = "llama-3.2-1b/none"
    assert _curve(case, **setting) == _curve(case, compiled=False, **setting)


def test_a_compiled_loss_keeps_logits_and_two_numbers_a_row() -> None:
    """No copy in fp32; its backward makes one tensor of the logits' size and dtype."""
    kept = sum(size for name, size in RECORDED["loss"] if name in ("amax", "log"))
    head = Head(VOCABULARY, False, None, False, False, Loss(), loss_is_compiled=True)
    from memcheck.autograd.context import Setting

    setting = Setting(TITAN, 1, TOKENS, 512)
    logits, hidden = 2 * TOKENS * VOCABULARY, 2 * TOKENS * 512
    curve = head_curve(head, setting, "bf16")
    assert curve.saved_bytes == logits + hidden + kept + 512, "the loss itself is a block of 512 bytes"
    eager = head_curve(head._replace(loss_is_compiled=False), setting, "bf16")
    assert eager.backward_peak.bytes - curve.backward_peak.bytes == pytest.approx(4 * logits, rel=1e-3), (
        "12 and 4 bytes a value"
    )


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.filterwarnings("ignore")
def test_the_partitioner_still_keeps_what_was_recorded() -> None:
    """Traced again by the torch that is installed."""
    now = json.loads(json.dumps(traced()))
    assert {k: v for k, v in now.items() if k != "torch"} == {k: v for k, v in RECORDED.items() if k != "torch"}


def test_gate_and_up_projection_of_one_tensor_are_compiled_as_two() -> None:
    """Phi-3's checkpoint joins them, and torchtune's layer has one each: the curve is Llama's of the same sizes."""
    sizes = {
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": False,
    }
    setting = {"style": TORCHTUNE.style, "attention": "flex", "sequence": TOKENS, "compiled": True}
    joined = curve_of({"model_type": "phi3", **sizes}, recompute="none", **{**TORCHTITAN, **setting})
    apart = curve_of({"model_type": "llama", **sizes}, recompute="none", **{**TORCHTITAN, **setting})
    assert joined == apart
