"""A run of HRM-Text's layers: the sum of both states in front of a stack, a norm after it, no graph in early runs.

Source: transformers 5.23 models/hrm_text/modeling_hrm_text.py (HrmTextModel.forward, HrmTextStack.forward).
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.curve import checkpointed
from memcheck.autograd.elementwise import add
from memcheck.autograd.norm import l2_norm_pieces
from memcheck.autograd.shared import shared
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.layers import block
from memcheck.models.types import Block, Cycle


def run(ctx: Context, layer: Block, cycle: Cycle, x: Value, *, recompute: bool) -> Value:
    """The layer, with the code around its stack: neither is checkpointed with it."""
    tape = ctx.tape
    enabled, tape.grad_enabled = tape.grad_enabled, tape.grad_enabled and cycle.graph
    try:
        if cycle.joins:
            x = add(tape, x, _other(ctx, cycle, x), "sum of both states")
        if recompute and cycle.graph:
            out = checkpointed(ctx, lambda c, v: block(c, layer, v), x)
        else:
            out = block(ctx, layer, x)
        if cycle.ends:
            del x
            out = l2_norm_pieces(tape, out)
        return out if cycle.graph else out.detach()
    finally:
        tape.grad_enabled = enabled


def _other(ctx: Context, cycle: Cycle, x: Value) -> Value:
    """The state that is no input of the run before; its gradient starts in the slow stack's run."""
    s = ctx.setting
    return shared(ctx.tape, x.shape, x.dtype, wants=cycle.graph and (s.trained or s.adapter is not None), starts=False)
