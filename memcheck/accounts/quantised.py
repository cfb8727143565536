"""Bytes of frozen weights that are stored quantised, tensor by tensor.

Sources: bitsandbytes 0.50 ``functional.py`` (quantize_4bit, int8_vectorwise_quant); gptqmodel 7.7
``nn_modules/qlinear/__init__.py`` (the buffers of a packed layer); transformers 5.23
``integrations/finegrained_fp8.py`` (FP8Linear).
"""

from __future__ import annotations

from memcheck.autograd.tensor import rounded

FOUR_BITS = ("nf4", "nf4-single", "fp4", "fp4-single")
"""bitsandbytes' 4-bit weights: with constants that are quantised once more, or not."""
PACKED = ("gptq-4bit", "gptq-8bit", "awq-4bit")
"""Codes, zero points and scales in the buffers of a layer."""
KINDS = (*FOUR_BITS, "int8", *PACKED, "fp8")
"""How a base may be stored, in addition to the dtypes of its checkpoint."""
GROUP = 128
"""Weights of one output that share a scale (transformers ``GPTQConfig`` and ``AwqConfig``, ``group_size``)."""
FP8_BLOCK = 128
"""Rows and columns that share a scale (``FineGrainedFP8Config``, ``weight_block_size``)."""


def quantised_bytes(kind: str, shape: tuple[int, ...], numel: int) -> int:
    """Bytes of one weight of ``shape`` [outputs, inputs], or of its shard of ``numel`` elements.

    4 bits: two constants of a byte each 64 weights, and their own scales; or one of fp32. int8: fp32 scales of rows.
    Packed: int32 words, a 16-bit scale and a zero point for each group, and GPTQ's int32 index of inputs.
    """
    if kind in ("nf4", "fp4"):
        return rounded(-(-numel * 4127 // 8000))
    if kind in ("nf4-single", "fp4-single"):
        return rounded(-(-numel // 2)) + rounded(4 * -(-numel // 64))
    outputs = shape[0] if len(shape) > 1 else 1
    inputs = numel // outputs
    if kind == "int8":
        return rounded(numel) + rounded(4 * outputs)
    if kind == "fp8":
        return rounded(numel) + rounded(4 * -(-outputs // FP8_BLOCK) * -(-inputs // FP8_BLOCK))
    bits = 8 if kind.endswith("8bit") else 4
    groups = -(-inputs // GROUP)
    held = rounded(numel * bits // 8) + rounded(groups * outputs * bits // 8) + rounded(2 * groups * outputs)
    shifts = 2 * rounded(4 * 32 // bits)
    return held + (rounded(4 * inputs) + shifts if kind.startswith("gptq") else 0)
