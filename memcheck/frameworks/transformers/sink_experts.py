"""Inkling's experts: shared ones are stacked, and weighted together with the routed ones.

Source: transformers 5.23 models/inkling/modeling_inkling.py (InklingTopkRouter, InklingSharedExperts, InklingMoE).
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import add, cast, convert_weight, mul, scale, subtract_rows, unary
from memcheck.autograd.indexing import gather, slices
from memcheck.autograd.log_probabilities import logsumexp
from memcheck.autograd.matrix import product
from memcheck.autograd.modules import activation
from memcheck.autograd.operator import PASSED, factors, operator
from memcheck.autograd.tensor import Storage, Value
from memcheck.errors import UnsupportedError
from memcheck.frameworks.transformers.moe import experts
from memcheck.models.types import Moe, ParameterTensor


def sink_experts(ctx: Context, m: Moe, x: Value) -> Value:
    """InklingMoE.forward: what the router returns is held until the shared experts are done."""
    if ctx.setting.expert > 1 or ctx.tp > 1:
        raise UnsupportedError(
            "memcheck has no model of Inkling's experts on several ranks",
            "leave tensor and expert at 1",
            "/parallelism",
        )
    tensors = {t.name.removeprefix("mlp.").removesuffix(".weight"): t for t in m.tensors}
    logits, scores, gammas, indices = _route(ctx, m, tensors, x)
    routed = experts(ctx, m, x, scores, indices)
    out = add(ctx.tape, routed, _shared(ctx, m, tensors, x, gammas), "routed + shared")
    del logits, scores, gammas, indices, routed
    return out


def _route(ctx: Context, m: Moe, tensors: dict[str, ParameterTensor], x: Value) -> tuple[Value, Value, Value, Storage]:
    """fp32 scores of every expert, without autocast: log-sigmoids of the chosen and the shared, normed over both."""
    tape, rows, k = ctx.tape, ctx.tokens, m.experts_per_token
    autocast, tape.autocast = tape.autocast, None
    weight = tape.parameter(ctx.parameter(tensors["gate"].name, tensors["gate"].shape))
    factor = tape.parameter(ctx.parameter(tensors["gate.global_scale"].name, (1,)))
    logits = product(tape, cast(tape, x, "fp32"), convert_weight(tape, weight, "fp32"), "router")
    both = logits.shape[-1]
    chances = tape.new((rows, both), "fp32", "sigmoid")
    corrected = tape.new((rows, m.experts), "fp32", "corrected scores")
    values = tape.new((rows, k), "fp32", "topk values")
    indices = tape.new((rows, k), "int64", "topk indices")
    del chances, corrected, values
    routed, shared = slices(tape, logits, (rows, m.experts), (rows, both - m.experts))
    taken = k + both - m.experts
    joined = tape.value((rows, taken), "fp32", "cat logits")
    joined = operator(tape, joined, (gather(tape, routed, indices), shared), PASSED)
    logs = unary(tape, joined, "logsigmoid")
    del joined, routed, shared
    weights = unary(tape, subtract_rows(tape, logs, logsumexp(tape, logs).view(rows, 1)), "exp")
    del logs
    weights = mul(tape, scale(tape, weights, "route scale"), convert_weight(tape, factor, "fp32"))
    tape.autocast = autocast
    weights = cast(tape, weights, x.dtype)
    gammas, scores = slices(tape, weights, (rows, taken - k), (rows, k))
    return logits, scores, gammas, indices


def _shared(ctx: Context, m: Moe, tensors: dict[str, ParameterTensor], x: Value, gammas: Value) -> Value:
    """InklingSharedExperts.forward: batched products of every expert with all tokens, summed in fp32."""
    tape, rows, hidden = ctx.tape, ctx.tokens, x.shape[-1]
    number = tensors["shared_experts.gate_proj"].shape[0]
    inner = (number, rows, m.shared_width // number)
    every = tape.record(
        Value(x.storage, (number, *x.shape), x.dtype), (x,), lambda grad: [tape.new(x_shape, grad.dtype, "sum")]
    )
    x_shape = x.shape
    gate = _product(ctx, tensors["shared_experts.gate_proj"], every, inner)
    up = _product(ctx, tensors["shared_experts.up_proj"], every, inner)
    activated = mul(tape, mul(tape, activation(tape, gate, m.activation), up), gammas.view(number, rows, 1))
    down = _product(ctx, tensors["shared_experts.down_proj"], activated, (number, rows, hidden))
    wide, narrow = cast(tape, down, "fp32"), down.dtype
    total = tape.value((rows, hidden), "fp32", "sum of shared experts")
    shape = wide.shape
    # an expanded view, which is made whole where the gradient is cast, or where a product reads it
    total = operator(tape, total, wide, PASSED if narrow != "fp32" else (shape, "fp32", "expand"))
    del wide
    out = cast(tape, total, x.dtype)
    del gate, up, activated, down
    return out


def _product(ctx: Context, tensor: ParameterTensor, x: Value, shape: tuple[int, ...]) -> Value:
    """``torch.bmm(x, weight.transpose(1, 2))``: keeps both. Autocast caches no copy of a view."""
    tape = ctx.tape
    parameter = ctx.parameter(tensor.name, tensor.shape)
    parameter.viewed = True
    weight = tape.parameter(parameter)
    if tape.autocast:
        weight, x = cast(tape, weight, tape.autocast), cast(tape, x, tape.autocast)
    out = tape.value(shape, x.dtype, tensor.name)
    dtype, w_shape = x.dtype, weight.shape
    return operator(
        tape, out, (x, weight), [tensor.name + " dX", (w_shape, dtype, tensor.name + " dW")], saves=factors(x, weight)
    )
