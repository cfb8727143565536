"""torchtitan's mixture of experts: fp32 weighting of expert outputs, all-to-alls under expert parallelism.

Sources: torchtitan models/common/moe.py (TokenChoiceTopKRouter, GroupedExperts, MoE) and token_dispatcher.py
(LocalTokenDispatcher, AllToAllTokenDispatcher). Ranks are taken to receive ``expert_imbalance`` times their even share.
"""

from __future__ import annotations

import math

from memcheck.autograd.context import Context
from memcheck.autograd.kernels import linear, softmax
from memcheck.autograd.modules import enter_tensor_parallel, leave_tensor_parallel
from memcheck.autograd.operator import (
    GRAD_UNCHANGED,
    add,
    cast,
    gather,
    grouped_mm,
    index,
    mul,
    operator,
    scale,
    topk,
    unary,
)
from memcheck.autograd.tensor import Storage, Tape, Value, ceil_div
from memcheck.frameworks.transformers.mlp import mlp
from memcheck.frameworks.transformers.moe import expert_tensors, shared_mlp
from memcheck.frameworks.transformers.router import router_tensor
from memcheck.models.types import Moe


def moe(ctx: Context, moe: Moe, x: Value) -> Value:
    """Run torchtitan's MoE: router, routed experts, shared experts, sum. ``x``: [tokens, hidden] on this tensor rank.

    With expert parallelism the tokens stay sharded over tensor ranks (sequence parallelism) on their way to the
    experts. Without it each tensor rank has a slice of every expert, which needs all tokens. So has expert-tensor
    parallelism (``ExpertTensorParallel`` of releases up to April 2026).
    """
    tape = ctx.tape
    tokens_sharded = ctx.tp == 1 or (ctx.setting.expert_parallel > 1 and ctx.setting.expert_tensor_parallel == 1)
    expert_input = x if tokens_sharded else enter_tensor_parallel(ctx, x)
    scores, ids = _route(ctx, moe, expert_input)
    routing_map = tape.new((expert_input.shape[0], moe.experts), "bool", "routing map")
    out = _routed(ctx, moe, expert_input, scores, ids)
    if not tokens_sharded:
        out = leave_tensor_parallel(ctx, out)
    del expert_input
    if moe.shared.width:
        shared = mlp(ctx, shared_mlp(moe), x)
        out = add(tape, out, shared, "routed + shared")
    del routing_map
    return out


def _route(ctx: Context, moe: Moe, x: Value) -> tuple[Value, Storage]:
    """Replay TokenChoiceTopKRouter, and return scores and expert ids, [tokens, experts_per_token].

    Its gate runs under ``torch.autocast(dtype=torch.float32)``. CUDA accepts that dtype: the gate keeps an fp32 copy of
    its input and makes fp32 scores. The CPU does not accept it; option ``fp32_gate`` says which applies.
    """
    tape = ctx.tape
    tensor = router_tensor(moe)
    outer_autocast = tape.autocast
    if ctx.setting.option("fp32_gate", False):
        tape.autocast = "fp32"
    logits = linear(tape, x, ctx.replicated(tensor), "router.gate")
    tape.autocast = outer_autocast
    probabilities = unary(tape, logits, "sigmoid") if moe.router == "sigmoid" else softmax(tape, logits)
    del logits
    biased_scores = tape.value(probabilities.shape, "fp32", "scores + expert_bias")
    scores_for_choice = operator(tape, biased_scores, probabilities, GRAD_UNCHANGED)
    values, ids = topk(tape, scores_for_choice, moe.experts_per_token)
    scores = gather(tape, probabilities, ids)
    if moe.routing.normalised:
        scores = _divide_by_sum(tape, scores)
    scores = scale(tape, scores, "route scale")
    del values, scores_for_choice, biased_scores
    return scores, ids


def _divide_by_sum(tape: Tape, x: Value) -> Value:
    """Compute ``x / (x.sum(-1, keepdim=True) + 1e-20)``; autograd keeps x and the denominator."""
    shape, dtype = x.shape, x.dtype
    total = tape.new((*shape[:-1], 1), dtype, "denominator")
    return operator(tape, tape.value(shape, dtype, "div"), x, "div backward", saves=(x, total))


def _routed(ctx: Context, moe: Moe, x: Value, scores: Value, ids: Storage) -> Value:
    """Dispatch tokens to their experts, run the experts, and combine their outputs. ``x``: [tokens, hidden].

    Rows between are [tokens * experts_per_token, hidden]. After the all-to-all of expert parallelism a rank has
    ``expert_imbalance`` times its even share.
    """
    tape = ctx.tape
    hidden, k = x.shape[-1], moe.experts_per_token
    sent_rows = x.shape[0] * k
    order = tape.new((sent_rows,), "int64", "argsort")
    sorted_scores = index(tape, scores.view(sent_rows), order, (sent_rows,), "sorted scores")
    token_of_row = tape.new((sent_rows,), "int64", "token of each row")
    rows = index(tape, x, token_of_row, (sent_rows, hidden), "gather tokens")
    del order
    received_rows = sent_rows
    permutation = None
    if ctx.setting.expert_parallel > 1:
        received_rows = math.ceil(sent_rows * ctx.setting.expert_imbalance)
        rows = _all_to_all(tape, rows, (received_rows, hidden))
        permutation = tape.new((received_rows,), "int64", "permuted indices")
        rows = index(tape, rows, permutation, (received_rows, hidden), "permute")
    expert_output = _experts(
        ctx, moe, rows
    )  # a local variable of RoutedExperts.forward, like rows: both live to its end
    out = expert_output
    if permutation is not None:
        out = _unpermute(tape, out, permutation)
        out = _all_to_all(tape, out, (sent_rows, hidden))
    return _combine(tape, out, sorted_scores, token_of_row, x)


def _all_to_all(tape: Tape, x: Value, shape: tuple[int, ...]) -> Value:
    """Replay all_to_all_single, which makes a new tensor in forward and in backward."""
    out = Value(tape.output("all-to-all", shape, x.dtype, "all-to-all"), shape, x.dtype)
    return operator(tape, out, x, "all-to-all backward")


def _unpermute(tape: Tape, x: Value, permutation: Storage) -> Value:
    """Replay ``new_empty(...)[permutation] = x``; autograd keeps the permutation."""
    return operator(tape, tape.value(x.shape, x.dtype, "unpermute"), x, "unpermute backward", saves=(permutation,))


def _experts(ctx: Context, moe: Moe, x: Value) -> Value:
    """Run GroupedExperts: ``w2(silu(w1 x) * w3 x)``, each one grouped product over the local experts.

    ``x``: rows sorted by expert, [rows, hidden]; so is what is returned.
    """
    tape, setting = ctx.tape, ctx.setting
    hidden = x.shape[-1]
    local = ceil_div(moe.experts, setting.expert_parallel)
    width = ceil_div(moe.width, setting.expert_tensor_parallel)
    up, down = expert_tensors(moe)
    offsets = tape.new((local,), "int32", "group offsets")
    up_shape, down_shape = (local, width, hidden), (local, hidden, width)
    gate = grouped_mm(tape, x, _weight(ctx, up.name + ".w1", up_shape), width, offsets, "experts.w1", up_shape)
    activated_gate = unary(tape, gate, "silu")
    del gate
    up_out = grouped_mm(tape, x, _weight(ctx, up.name + ".w3", up_shape), width, offsets, "experts.w3", up_shape)
    inner = mul(tape, activated_gate, up_out)
    del activated_gate, up_out
    return grouped_mm(tape, inner, _weight(ctx, down.name, down_shape), hidden, offsets, "experts.w2", down_shape)


def _weight(ctx: Context, name: str, shape: tuple[int, int, int]) -> Value:
    return ctx.tape.parameter(ctx.parameter(name, shape))


def _combine(tape: Tape, rows: Value, scores: Value, token_of_row: Storage, x: Value) -> Value:
    """Multiply expert outputs by their scores in fp32, cast back, and add them to their tokens: [tokens, hidden].

    ``rows``: outputs of the experts, a row for each token and expert. ``token_of_row``: indices for the scatter-add.
    Autograd saves the fp32 copy of the outputs for the scores' gradient. ``x``: gives the result's shape.
    """
    zeros = tape.new(x.shape, x.dtype, "zeros_like")
    dtype, shape = rows.dtype, rows.shape
    fp32_rows = cast(tape, rows, "fp32")
    weighted = mul(tape, fp32_rows, scores.view(shape[0], 1))
    del fp32_rows
    narrow = cast(tape, weighted, dtype)
    del weighted, rows
    out = tape.value(x.shape, x.dtype, "scatter_add")
    del zeros
    return operator(tape, out, narrow, (shape, dtype, "gather"), saves=(token_of_row,))
