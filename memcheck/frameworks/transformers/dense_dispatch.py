"""Llama 4 in transformers: every expert is given every token, multiplied by its score (zero for most).

Source: transformers 5.23 models/llama4/modeling_llama4.py, Llama4TextMoe and Llama4TextExperts.
"""

from __future__ import annotations

from memcheck.autograd.context import Context, enter_tensor_parallel, leave_tensor_parallel
from memcheck.autograd.elementwise import cast, mul, unary
from memcheck.autograd.indexing import topk
from memcheck.autograd.matrix import linear
from memcheck.autograd.tensor import Storage, Tape, Value
from memcheck.frameworks.transformers.mlp import activation, mlp
from memcheck.frameworks.transformers.moe import expert_tensors, shared_mlp
from memcheck.frameworks.transformers.router import router_tensor
from memcheck.models.types import Moe


def dense_dispatch(ctx: Context, m: Moe, x: Value) -> Value:
    """Router, all experts on all tokens, the shared expert, and the sum over experts added to it in place."""
    tape = ctx.tape
    hidden = x.shape[-1]
    local = -(-m.experts // ctx.setting.expert)
    width = -(-m.width // ctx.setting.expert_tensor)
    tensor = router_tensor(m)
    inside = enter_tensor_parallel(ctx, x)
    tokens = inside.shape[0]
    logits = linear(tape, inside, ctx.replicated(tensor), tensor.name)
    scores = _scores(tape, logits, m.experts_per_token)
    rows = local * tokens
    repeated = _repeat(tape, inside, (rows, hidden))
    spread = tape.value((rows, 1), scores.dtype, "scores by expert")
    small, dtype = scores.shape, scores.dtype
    spread = tape.record(spread, (scores,), lambda grad: [tape.new(small, dtype, "transpose")])
    routed = mul(tape, repeated, spread)
    up, down = expert_tensors(m)
    both = _bmm(ctx, routed, up.name, (local, hidden, 2 * width))
    half = (rows, width)
    g, u = tape.views(both, half, half)
    inner = mul(tape, u, activation(tape, g, m.activation))
    out = leave_tensor_parallel(ctx, _bmm(ctx, inner, down.name, (local, width, hidden)))
    shared = mlp(ctx, shared_mlp(m), x)
    return _add_sum(tape, shared, out)


def _scores(tape: Tape, logits: Value, k: int) -> Value:
    """sigmoid of the chosen logits, scattered among -inf: the sigmoid's fp32 result is kept."""
    chosen, indices = topk(tape, logits, k)
    shape, dtype = logits.shape, logits.dtype
    full = tape.value(shape, dtype, "full_like")
    small = chosen.shape

    def run(grad: Storage, kept: Storage = indices) -> list[Storage | None]:
        return [tape.new(small, dtype, "gather")]

    full = tape.record(full, (chosen,), run)
    return cast(tape, unary(tape, cast(tape, full, "fp32"), "sigmoid"), dtype)


def _repeat(tape: Tape, x: Value, shape: tuple[int, ...]) -> Value:
    """``hidden_states.repeat(experts, 1)``: its backward sums over the repetitions."""
    out = tape.value(shape, x.dtype, "repeat")
    source, dtype = x.shape, x.dtype
    return tape.record(out, (x,), lambda grad: [tape.new(source, dtype, "sum")])


def _bmm(ctx: Context, x: Value, name: str, shape: tuple[int, int, int]) -> Value:
    """``torch.bmm(hidden_states, experts)``: rows of each expert times its [in, out] matrix."""
    tape = ctx.tape
    weight = tape.parameter(ctx.parameter(name, shape))
    if tape.autocast:
        weight = cast(tape, weight, tape.autocast)
        x = cast(tape, x, tape.autocast)
    out = tape.value((x.shape[0], shape[2]), x.dtype, name)
    nx, nw = x.origin is not None, weight.origin is not None
    kept = (x.storage if nw else None, weight.storage if nx else None)
    x_shape, dtype, w_dtype = x.shape, x.dtype, weight.dtype

    def run(grad: Storage, kept: object = kept) -> list[Storage | None]:
        gw = tape.new(shape, w_dtype, name + " dW") if nw else None
        gx = tape.new(x_shape, dtype, name + " dX") if nx else None
        return [gx, gw]

    return tape.record(out, (x, weight), run)


def _add_sum(tape: Tape, shared: Value, routed: Value) -> Value:
    """``out.add_(routed.reshape(experts, ...).sum(0))``, which autocast computes of an fp32 copy."""
    wide = tape.new(routed.shape, "fp32", "to") if tape.autocast else None
    total = tape.new(shared.shape, "fp32" if tape.autocast else routed.dtype, "sum over experts")
    out = Value(shared.storage, shared.shape, shared.dtype)
    del total, wide
    shape, dtype = routed.shape, routed.dtype
    return tape.record(out, (shared, routed), lambda grad: [grad, tape.new(shape, dtype, "expanded gradient")])
