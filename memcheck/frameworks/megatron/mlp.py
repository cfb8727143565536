"""Megatron's dense MLP: linear_fc1 (gate and up in one), activation, linear_fc2.

Source: Megatron-core ``transformer/mlp.py``, ``transformer/moe/shared_experts.py``.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.tensor import Value, ceil_div
from memcheck.frameworks.megatron.fusions import activate
from memcheck.frameworks.megatron.linear import Projection, column, projection, row
from memcheck.models.types import Mlp, Norm


def mlp(ctx: Context, mlp: Mlp, x: Value, spec: Norm | None, owner: str = "mlp") -> tuple[Value, Projection]:
    """Return the MLP's output and its second projection (whose bias the bias-dropout-add adds).

    ``spec``: the norm before it, where linear_fc1 does it (TE).
    """
    width = ceil_div(mlp.width, ctx.tp)
    fc1 = projection(ctx, owner + ".linear_fc1", width * (2 if mlp.gated else 1), ctx.hidden, bias=mlp.bias, adds=False)
    fc2 = projection(ctx, owner + ".linear_fc2", ctx.hidden, width, bias=mlp.bias, adds=False)
    inner = column(ctx, x, fc1, owner + ".linear_fc1", spec)
    del x
    inner = activate(ctx, inner, fc1.bias, gated=mlp.gated, activation=mlp.activation)
    return row(ctx, inner, fc2, owner + ".linear_fc2"), fc2
