"""torchtune's norms: RMSNorm in pieces whose fp32 product has no name; Gemma's is transformers' (models/gemma)."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import cast, mean_rows, mul, power, unary
from memcheck.autograd.modules import normalise as transformers_norm
from memcheck.autograd.tensor import Value
from memcheck.models.types import Norm


def normalise(ctx: Context, norm: Norm | None, x: Value, name: str = "norm") -> Value:
    """RMSNorm.forward (modules/rms_norm.py): its input, its fp32 copy and the rounded product are variables of it."""
    if norm is None or norm.kind != "rmsnorm":
        return transformers_norm(ctx, norm, x, name)
    tape = ctx.tape
    weight, _ = ctx.norm_weight(norm, name)
    wide = cast(tape, x, "fp32")
    inverse = unary(tape, mean_rows(tape, power(tape, wide)), "rsqrt")
    normed = cast(tape, mul(tape, wide, inverse), x.dtype)
    del inverse
    out = normed if weight is None else mul(tape, normed, tape.parameter(weight))
    del wide, normed
    return out
