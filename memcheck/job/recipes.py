"""Precision recipes that several frameworks share, and the fallback for a recipe a framework does not offer.

``compute`` is the dtype of activations; an ``fp8-mixed`` recipe computes its matrix products from fp8 casts of bf16
activations, so the saved tensors decide per framework which of the two is kept.
"""

from __future__ import annotations

from memcheck.job.types import Recipe

FP32 = Recipe("fp32", "fp32", "fp32", "fp32", "none", "fp32", "fp32", False)
BF16_PURE = Recipe("bf16-pure", "bf16", "bf16", "bf16", "none", "bf16", "bf16", False)
FP16_PURE = Recipe("fp16-pure", "fp16", "fp16", "fp16", "none", "fp16", "fp16", False)

AUTOCAST_BF16 = Recipe("bf16-mixed", "fp32", "bf16", "fp32", "none", "fp32", "fp32", True)
"""torch.autocast over fp32 weights: the weights are the master copy, casts live from forward to backward."""
AUTOCAST_FP16 = Recipe("fp16-mixed", "fp32", "fp16", "fp32", "none", "fp32", "fp32", True)
AUTOCAST_FP8 = Recipe("fp8-mixed", "fp32", "bf16", "fp32", "none", "fp32", "fp32", True)

FSDP2_BF16 = Recipe("bf16-mixed", "fp32", "bf16", "fp32", "none", "fp32", "fp32", False)
"""``MixedPrecisionPolicy(param_dtype=bfloat16, reduce_dtype=float32)`` over fp32 shards: units are gathered in bf16."""
FSDP2_FP16 = Recipe("fp16-mixed", "fp32", "fp16", "fp32", "none", "fp32", "fp32", False)
FSDP2_FP8 = Recipe("fp8-mixed", "fp32", "bf16", "fp32", "none", "fp32", "fp32", False)

GENERIC: dict[str, Recipe] = {
    r.recipe: r for r in (FP32, AUTOCAST_BF16, AUTOCAST_FP16, AUTOCAST_FP8, BF16_PURE, FP16_PURE)
}
"""What a recipe means to PyTorch itself; used to price a plan whose framework does not offer it."""
