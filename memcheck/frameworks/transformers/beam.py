"""Beam's gate after attention, and the fp32 products of its networks.

Source: transformers 5.23 models/beam/modeling_beam.py (BeamAttention.forward, BeamMLP, BeamExperts).
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import cast, mul, unary
from memcheck.autograd.matrix import linear
from memcheck.autograd.modules import activation
from memcheck.autograd.tensor import Tape, Value, promote
from memcheck.frameworks.transformers.mlp import linear_tensors
from memcheck.models.types import Attention, Mlp, Moe


def gated_late(ctx: Context, a: Attention, out: Value, x: Value) -> Value:
    """``out * sigmoid(gate_proj(x) + gate_bias)``: the bias is a number for each head, and as wide as the weights.

    Without it the gate is one of each element (Muse Glimmer).
    """
    tape, tensor = ctx.tape, linear_tensors(a.tensors)[4]
    made = linear(tape, x, ctx.weights(tensor, False, adaptable=a.gate_adaptable), tensor.name)
    offset = next((t for t in a.tensors if t.name.endswith("gate_bias")), None)
    if offset is None:
        return mul(tape, out, unary(tape, made, "sigmoid"))
    bias = tape.parameter(ctx.parameter(offset.name, (-(-a.heads // ctx.tp),)))
    gate = tape.value(made.shape, promote(made.dtype, bias.dtype), "gate + bias")
    gate = tape.record(gate, (made, bias), lambda grad: [grad, grad], validated=True)
    del made
    return mul(tape, out, unary(tape, gate, "sigmoid"))


def wide_product(tape: Tape, m: Mlp | Moe, gate: Value, up: Value) -> Value:
    """``(act(gate.float()) * up.float()).to(gate.dtype)``."""
    acted = activation(tape, cast(tape, gate, "fp32"), m.activation)
    return cast(tape, mul(tape, acted, cast(tape, up, "fp32")), gate.dtype)
