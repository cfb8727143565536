"""torchtitan's mixture of experts: fp32 weighting of expert outputs, all-to-alls under expert parallelism.

Sources: torchtitan models/common/moe.py (TokenChoiceTopKRouter, GroupedExperts, MoE) and token_dispatcher.py
(LocalTokenDispatcher, AllToAllTokenDispatcher). Ranks are taken to receive ``expert_imbalance`` times their even share.
"""

from __future__ import annotations

import math

from memcheck.autograd.attention import softmax
from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import add, cast, mul, scale, unary
from memcheck.autograd.indexing import gather, grouped_mm, index, topk
from memcheck.autograd.matrix import linear
from memcheck.autograd.operator import PASSED, operator
from memcheck.autograd.parallel import enter_tensor_parallel, leave_tensor_parallel
from memcheck.autograd.tensor import Storage, Tape, Value
from memcheck.frameworks.transformers.mlp import mlp
from memcheck.frameworks.transformers.moe import expert_tensors, shared_mlp
from memcheck.frameworks.transformers.router import router_tensor
from memcheck.models.types import Moe


def moe(ctx: Context, m: Moe, x: Value) -> Value:
    """Router, routed experts, shared experts, sum.

    With expert parallelism the tokens stay divided over tensor ranks (sequence parallelism) on their way to the
    experts; without it each tensor rank has a slice of every expert, as it has of its own ones under expert-tensor
    parallelism, which needs all tokens too (``ExpertTensorParallel`` of releases up to April 2026).
    """
    tape = ctx.tape
    divided = ctx.tp == 1 or (ctx.setting.expert > 1 and ctx.setting.expert_tensor == 1)
    inside = x if divided else enter_tensor_parallel(ctx, x)
    scores, ids = _route(ctx, m, inside)
    routing_map = tape.new((inside.shape[0], m.experts), "bool", "routing map")
    out = _routed(ctx, m, inside, scores, ids)
    if not divided:
        out = leave_tensor_parallel(ctx, out)
    del inside
    if m.shared_width:
        shared = mlp(ctx, shared_mlp(m), x)
        out = add(tape, out, shared, "routed + shared")
    del routing_map
    return out


def _route(ctx: Context, m: Moe, x: Value) -> tuple[Value, Storage]:
    """TokenChoiceTopKRouter.

    Its gate runs under ``torch.autocast(dtype=torch.float32)``: where autocast takes that dtype (CUDA does, the CPU
    does not) it keeps an fp32 copy of its input and makes fp32 scores; option ``fp32_gate``.
    """
    tape = ctx.tape
    tensor = router_tensor(m)
    outside = tape.autocast
    if ctx.setting.option("fp32_gate", False):
        tape.autocast = "fp32"
    logits = linear(tape, x, ctx.replicated(tensor), "router.gate")
    tape.autocast = outside
    probabilities = unary(tape, logits, "sigmoid") if m.router == "sigmoid" else softmax(tape, logits)
    del logits
    biased = tape.value(probabilities.shape, "fp32", "scores + expert_bias")
    chosen = operator(tape, biased, probabilities, PASSED)
    values, ids = topk(tape, chosen, m.experts_per_token)
    scores = gather(tape, probabilities, ids)
    if m.normalised_scores:
        scores = _divide_by_sum(tape, scores)
    scores = scale(tape, scores, "route scale")
    del values, chosen, biased
    return scores, ids


def _divide_by_sum(tape: Tape, x: Value) -> Value:
    """``x / (x.sum(-1, keepdim=True) + 1e-20)``: keeps x and the denominator."""
    shape, dtype = x.shape, x.dtype
    total = tape.new((*shape[:-1], 1), dtype, "denominator")
    return operator(tape, tape.value(shape, dtype, "div"), x, "div backward", saves=(x, total))


def _routed(ctx: Context, m: Moe, x: Value, scores: Value, ids: Storage) -> Value:
    """Dispatch, expert computation, combine."""
    tape = ctx.tape
    hidden, k = x.shape[-1], m.experts_per_token
    sent = x.shape[0] * k
    order = tape.new((sent,), "int64", "argsort")
    sorted_scores = index(tape, scores.view(sent), order, (sent,), "sorted scores")
    token = tape.new((sent,), "int64", "token of each row")
    rows = index(tape, x, token, (sent, hidden), "gather tokens")
    del order
    received = sent
    permutation = None
    if ctx.setting.expert > 1:
        received = math.ceil(sent * ctx.setting.expert_imbalance)
        rows = _all_to_all(tape, rows, (received, hidden))
        permutation = tape.new((received,), "int64", "permuted indices")
        rows = index(tape, rows, permutation, (received, hidden), "permute")
    made = _experts(ctx, m, rows)  # a local variable of RoutedExperts.forward, like rows: both live to its end
    out = made
    if permutation is not None:
        out = _unpermute(tape, out, permutation)
        out = _all_to_all(tape, out, (sent, hidden))
    return _combine(tape, out, sorted_scores, token, x)


def _all_to_all(tape: Tape, x: Value, shape: tuple[int, ...]) -> Value:
    """all_to_all_single: a new tensor in both directions."""
    out = Value(tape.output("all-to-all", shape, x.dtype, "all-to-all"), shape, x.dtype)
    return operator(tape, out, x, "all-to-all backward")


def _unpermute(tape: Tape, x: Value, permutation: Storage) -> Value:
    """``new_empty(...)[permutation] = x``."""
    return operator(tape, tape.value(x.shape, x.dtype, "unpermute"), x, "unpermute backward", saves=(permutation,))


def _experts(ctx: Context, m: Moe, x: Value) -> Value:
    """GroupedExperts: silu(w1 x) * w3 x, then w2, each one grouped product over the local experts."""
    tape, s = ctx.tape, ctx.setting
    hidden = x.shape[-1]
    local = -(-m.experts // s.expert)
    width = -(-m.width // s.expert_tensor)
    up, down = expert_tensors(m)
    offsets = tape.new((local,), "int32", "group offsets")
    into, back = (local, width, hidden), (local, hidden, width)
    gate = grouped_mm(tape, x, _weight(ctx, up.name + ".w1", into), width, offsets, "experts.w1", into)
    acted = unary(tape, gate, "silu")
    del gate
    other = grouped_mm(tape, x, _weight(ctx, up.name + ".w3", into), width, offsets, "experts.w3", into)
    inner = mul(tape, acted, other)
    del acted, other
    return grouped_mm(tape, inner, _weight(ctx, down.name, back), hidden, offsets, "experts.w2", back)


def _weight(ctx: Context, name: str, shape: tuple[int, int, int]) -> Value:
    return ctx.tape.parameter(ctx.parameter(name, shape))


def _combine(tape: Tape, rows: Value, scores: Value, token: Storage, x: Value) -> Value:
    """Scores times expert outputs in fp32, back to bf16, scatter-added to their tokens.

    The fp32 copy of the outputs is kept: the router's gradient needs it.
    """
    zeros = tape.new(x.shape, x.dtype, "zeros_like")
    dtype, shape = rows.dtype, rows.shape
    wide = cast(tape, rows, "fp32")
    weighted = mul(tape, wide, scores.view(shape[0], 1))
    del wide
    narrow = cast(tape, weighted, dtype)
    del weighted, rows
    out = tape.value(x.shape, x.dtype, "scatter_add")
    del zeros
    return operator(tape, out, narrow, (shape, dtype, "gather"), saves=(token,))
