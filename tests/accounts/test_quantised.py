"""Bytes of quantised weights against the tensors that are in published checkpoints."""

from __future__ import annotations

import pytest

from memcheck.autograd.weight_formats import FORMATS

OUT, IN = 11008, 4096
"""A gate projection of Llama 2 7B."""


@pytest.mark.parametrize(("kind", "bits"), [("gptq-4bit", 4), ("gptq-8bit", 8), ("awq-4bit", 4)])
def test_packed_weights_are_all_their_tensors(kind: str, bits: int) -> None:
    """int32 words of weights [in * bits / 32, out] and zero points [in / 128, out * bits / 32], fp16 scales
    [in / 128, out], and GPTQ's group of each input with its two vectors of shifts.
    """
    words, zeros, scales = IN * bits // 32 * OUT * 4, IN // 128 * OUT * bits // 32 * 4, IN // 128 * OUT * 2
    more = 4 * IN + 2 * 512 if kind.startswith("gptq") else 0
    assert FORMATS[kind].stored_bytes((OUT, IN), OUT * IN) == words + zeros + scales + more


def test_narrow_weights_have_their_scales() -> None:
    """A number in fp32 for each output (LLM.int8()), or for each block of 128 x 128 (DeepSeek's fp8)."""
    assert FORMATS["int8"].stored_bytes((OUT, IN), OUT * IN) == OUT * IN + 4 * OUT + -(4 * OUT) % 512
    assert FORMATS["fp8"].stored_bytes((OUT, IN), OUT * IN) == OUT * IN + 86 * 32 * 4 + -(86 * 32 * 4) % 512
