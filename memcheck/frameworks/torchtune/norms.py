"""torchtune's norms: RMSNorm in pieces whose fp32 product has no name; Gemma's is transformers' (models/gemma)."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.modules import normalise as transformers_norm
from memcheck.autograd.operator import cast, mean_rows, mul, power, unary
from memcheck.autograd.tensor import Value
from memcheck.models.types import Norm


def normalise(ctx: Context, norm: Norm | None, x: Value, name: str = "norm") -> Value:
    """Apply torchtune's RMSNorm.forward in pieces, or transformers' norm for another kind. ``x``: rows to norm.

    The input, its fp32 copy and the rounded product are variables of it. Source: modules/rms_norm.py.
    """
    if norm is None or norm.kind != "rmsnorm":
        return transformers_norm(ctx, norm, x, name)
    tape = ctx.tape
    weight, _ = ctx.norm_weight(norm, name)
    fp32_x = cast(tape, x, "fp32")
    rstd = unary(tape, mean_rows(tape, power(tape, fp32_x)), "rsqrt")
    normed = cast(tape, mul(tape, fp32_x, rstd), x.dtype)
    del rstd
    out = normed if weight is None else mul(tape, normed, tape.parameter(weight))
    del fp32_x, normed
    return out
