"""Llama 4 in transformers: every expert is given every token, multiplied by its score (zero for most).

Source: transformers 5.23 models/llama4/modeling_llama4.py, Llama4TextMoe and Llama4TextExperts.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.kernels import linear
from memcheck.autograd.modules import activation, enter_tensor_parallel, leave_tensor_parallel
from memcheck.autograd.operator import GRAD_UNCHANGED, cast, factors, mul, operator, topk, unary
from memcheck.autograd.tensor import Tape, Value, ceil_div
from memcheck.frameworks.transformers.mlp import mlp
from memcheck.frameworks.transformers.moe import expert_tensors, shared_mlp
from memcheck.frameworks.transformers.router import router_tensor
from memcheck.models.types import Moe


def dense_dispatch(ctx: Context, moe: Moe, x: Value) -> Value:
    """Run Llama 4's experts: every expert gets every token times its score, and their sum is added to the shared
    expert's.

    ``x``: [tokens, hidden]; so is what is returned. Tensors between are [experts * tokens, width].
    """
    tape = ctx.tape
    hidden = x.shape[-1]
    local_experts = ceil_div(moe.experts, ctx.setting.expert_parallel)
    width = ceil_div(moe.width, ctx.setting.expert_tensor_parallel)
    tensor = router_tensor(moe)
    expert_input = enter_tensor_parallel(ctx, x)
    tokens = expert_input.shape[0]
    logits = linear(tape, expert_input, ctx.replicated(tensor), tensor.name)
    scores = _scores(tape, logits, moe.experts_per_token)
    rows = local_experts * tokens
    repeated = _repeat(tape, expert_input, (rows, hidden))
    expert_scores = tape.value((rows, 1), scores.dtype, "scores by expert")
    expert_scores = operator(tape, expert_scores, scores, "transpose")
    routed = mul(tape, repeated, expert_scores)
    up, down = expert_tensors(moe)
    gate_and_up = _bmm(ctx, routed, up.name, (local_experts, hidden, 2 * width))
    half = (rows, width)
    gate, up_half = tape.views(gate_and_up, half, half)
    activated = mul(tape, up_half, activation(tape, gate, moe.activation))
    out = leave_tensor_parallel(ctx, _bmm(ctx, activated, down.name, (local_experts, width, hidden)))
    shared = mlp(ctx, shared_mlp(moe), x)
    return _add_sum(tape, shared, out)


def _scores(tape: Tape, logits: Value, k: int) -> Value:
    """Compute the sigmoid of the chosen logits, scattered among -inf; its fp32 result is kept. [tokens, experts]."""
    chosen, indices = topk(tape, logits, k)
    shape, dtype = logits.shape, logits.dtype
    scattered = tape.value(shape, dtype, "full_like")
    scattered = operator(tape, scattered, chosen, (chosen.shape, dtype, "gather"), saves=(indices,))
    return cast(tape, unary(tape, cast(tape, scattered, "fp32"), "sigmoid"), dtype)


def _repeat(tape: Tape, x: Value, shape: tuple[int, ...]) -> Value:
    """``hidden_states.repeat(experts, 1)``: its backward sums over the repetitions."""
    return operator(tape, tape.value(shape, x.dtype, "repeat"), x, "sum")


def _bmm(ctx: Context, x: Value, name: str, shape: tuple[int, int, int]) -> Value:
    """Compute ``torch.bmm(hidden_states, experts)``: rows of each expert times its matrix, ``shape`` [experts, in,
    out].
    """
    tape = ctx.tape
    weight = tape.parameter(ctx.parameter(name, shape))
    if tape.autocast:
        weight = cast(tape, weight, tape.autocast)
        x = cast(tape, x, tape.autocast)
    out = tape.value((x.shape[0], shape[2]), x.dtype, name)
    w_dtype = weight.dtype
    return operator(
        tape, out, (x, weight), [name + " dX", (shape, w_dtype, name + " dW")], saves=factors(x, weight), reverse=True
    )


def _add_sum(tape: Tape, shared: Value, routed: Value) -> Value:
    """Compute ``out.add_(routed.reshape(experts, ...).sum(0))``, which autocast computes of an fp32 copy."""
    wide = tape.new(routed.shape, "fp32", "to") if tape.autocast else None
    total = tape.new(shared.shape, "fp32" if tape.autocast else routed.dtype, "sum over experts")
    out = Value(shared.storage, shared.shape, shared.dtype)
    del total, wide
    return operator(tape, out, (shared, routed), [GRAD_UNCHANGED, "expanded gradient"])
