"""Precision recipes that several frameworks share, and the fallback for a recipe a framework does not offer.

``compute`` is the dtype of activations; an ``fp8-mixed`` recipe computes its matrix products from fp8 casts of bf16
activations, so the saved tensors decide per framework which of the two is kept.
"""

from __future__ import annotations

from memcheck.job.types import Recipe


def _uniform(recipe: str, dtype: str) -> Recipe:
    """A recipe with everything in one dtype, and without a master copy of the weights."""
    return Recipe(
        recipe=recipe,
        params=dtype,
        compute=dtype,
        gradients=dtype,
        master="none",
        optimizer_states=dtype,
        reduce=dtype,
        autocast=False,
    )


FP32 = _uniform("fp32", "fp32")
BF16_PURE = _uniform("bf16-pure", "bf16")
FP16_PURE = _uniform("fp16-pure", "fp16")

AUTOCAST_BF16 = FP32._replace(recipe="bf16-mixed", compute="bf16", autocast=True)
"""torch.autocast over fp32 weights: the weights are the master copy, casts live from forward to backward."""
AUTOCAST_FP16 = AUTOCAST_BF16._replace(recipe="fp16-mixed", compute="fp16")
AUTOCAST_FP8 = AUTOCAST_BF16._replace(recipe="fp8-mixed")

FSDP2_BF16 = FP32._replace(recipe="bf16-mixed", compute="bf16")
"""``MixedPrecisionPolicy(param_dtype=bfloat16, reduce_dtype=float32)`` over fp32 shards: units are gathered in bf16."""
FSDP2_FP16 = FSDP2_BF16._replace(recipe="fp16-mixed", compute="fp16")
FSDP2_FP8 = FSDP2_BF16._replace(recipe="fp8-mixed")

GENERIC: dict[str, Recipe] = {
    r.recipe: r for r in (FP32, AUTOCAST_BF16, AUTOCAST_FP16, AUTOCAST_FP8, BF16_PURE, FP16_PURE)
}
"""What a recipe means to PyTorch itself; used to price a plan whose framework does not offer it."""
