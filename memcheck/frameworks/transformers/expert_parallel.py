"""Experts on several ranks, combined with FSDP2, as NeMo AutoModel runs them: a rank has whole experts, and tokens
travel.

``dispatcher: torch`` gathers every token of the group on each rank (``components/moe/experts.py``,
GroupedExperts); the others send tokens (:mod:`memcheck.frameworks.transformers.sent_tokens`).
Experts are one grouped product per matrix, with the routing weight within the activation, whose function keeps its
input and those weights (``components/moe/megatron/moe_utils.py``, WeightedSwiGLUFunction). Read at
NVIDIA-NeMo/Automodel 36044ad3.
"""

from __future__ import annotations

import math

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import cast, mul
from memcheck.autograd.indexing import grouped_mm, index
from memcheck.autograd.operator import GRAD_UNCHANGED, operator
from memcheck.autograd.tensor import Dim, Storage, Tape, Value
from memcheck.errors import UnsupportedError
from memcheck.frameworks.stacked_adapters import demand_both, factors_here
from memcheck.frameworks.transformers.grouped_adapters import Operands, operands, with_adapter
from memcheck.models.feed_forward_types import DenseDispatchMoe, StreamMoe
from memcheck.models.types import Moe, ParameterTensor


def dispatched_experts(ctx: Context, m: Moe, x: Value, scores: Value, indices: Storage) -> Value:
    """Run routed experts that are spread over ranks, and return their outputs for this rank's tokens,
    [tokens, hidden].
    """
    weights = cast(ctx.tape, cast(ctx.tape, scores, x.dtype), "fp32")
    if ctx.setting.dispatcher == "torch":
        return _all_gather_experts(ctx, m, x, weights, indices)
    from memcheck.frameworks.transformers.sent_tokens import sent, sent_permuted

    return (sent_permuted if ctx.setting.dispatcher == "hybridep" else sent)(ctx, m, x, weights)


def demand_whole(ctx: Context, m: Moe) -> None:
    """Check that these experts can be on several ranks.

    Raises:
        UnsupportedError: the experts are split, adapted in part, or combined with a dense network of the layer.
    """
    help = "choose parallelism.expert: 1, or training.framework: torchtitan or megatron"
    if isinstance(m, (DenseDispatchMoe, StreamMoe)):
        raise UnsupportedError("these experts have no model on several ranks", help, "/parallelism/expert")
    if ctx.tp > 1 or ctx.setting.expert_tensor > 1:
        message = "memcheck has no model of experts on several ranks with tensor parallelism"
        raise UnsupportedError(message, help, "/parallelism/tensor")
    demand_both(ctx.setting.adapter, m)


def _all_gather_experts(ctx: Context, m: Moe, x: Value, weights: Value, _indices: Storage) -> Value:
    """Gather all tokens on every rank, run the local experts on their tokens, and sum the results of all ranks in fp32.

    ``x``: [tokens, hidden]; so is what is returned. Classes with adapters gather and sum through DTensors: one
    all-gather, and a reduce-scatter to each rank's tokens. Source: ``components/moe/experts.py``, GroupedExperts.
    """
    tape, expert_ranks, experts_per_token = ctx.tape, ctx.setting.expert, m.experts_per_token
    local_tokens, hidden = x.shape[0], x.shape[-1]
    all_tokens_count = Dim(local_tokens * expert_ranks, "T*ep")
    input_dtype = x.dtype
    adapted = bool(factors_here(m, ctx.setting.adapter, expert_ranks))
    all_tokens = _gather_all(tape, x, (all_tokens_count, hidden), in_parts=not adapted)
    del x
    all_weights = _gather_all(tape, weights, (all_tokens_count, experts_per_token), in_parts=not adapted)
    all_indices = tape.new((all_tokens_count, experts_per_token), "int64", "gathered indices")
    rows = choices_here(ctx, local_tokens * experts_per_token)
    mask = tape.new((all_tokens_count,), "bool", "gathered token mask")
    factors = operands(ctx, m, input_dtype)
    tokens, probabilities, token_of_row = _permute_tokens(tape, all_tokens, all_weights, all_indices, rows)
    slots = tape.new((rows,), "int64", "sorted slot ids") if not adapted else None
    summed = Value(tape.new((all_tokens_count, hidden), "fp32", "sum of experts"), (all_tokens_count, hidden), "fp32")
    module_variables: list[Value] = []
    out = local_experts(ctx, m, tokens, probabilities, factors, module_variables)
    fp32_out = cast(tape, out, "fp32")
    del out
    summed = _scatter_add(tape, summed, fp32_out, token_of_row)
    del fp32_out, slots, token_of_row, module_variables, factors
    if adapted:
        del tokens, probabilities
        local_sums = _own_sums(tape, summed, (local_tokens, hidden))
        del summed
    else:
        summed = _tie_to_input(tape, summed, all_tokens)
        summed = _copied(tape, summed, "all-reduce of the outputs")
        local_sums = _narrowed(tape, summed, (local_tokens, hidden))
        del summed, tokens, probabilities
    result = cast(tape, local_sums, input_dtype)
    del all_tokens, all_weights, all_indices, mask
    return result


def _permute_tokens(
    tape: Tape, all_tokens: Value, all_weights: Value, all_indices: Storage, rows: Dim
) -> tuple[Value, Value, Storage]:
    """Replay ``_permute_tokens_for_grouped_mm``: rows of this rank's experts sorted by expert, their weights, their
    tokens.

    The rows are [``rows``, hidden].
    """
    flat = (all_indices.shape[0] * all_indices.shape[1],)
    masked = tape.new(all_indices.shape, "int64", "masked indices")
    token_ids = tape.new(flat, "int64", "token of each choice")
    is_local = tape.new(flat, "bool", "choices of local experts")
    expert_ids = tape.new((rows,), "int64", "local expert ids")
    local_weights = index(tape, all_weights.view(flat[0]), is_local, (rows,), "local weights")
    order = tape.new((rows,), "int64", "sort order")
    sorted_weights = index(tape, local_weights, order, (rows,), "sorted weights")
    token_of_row = tape.new((rows,), "int64", "token of each row")
    del masked, token_ids, is_local, expert_ids, local_weights
    return (
        index(tape, all_tokens, token_of_row, (rows, all_tokens.shape[-1]), "gather tokens"),
        sorted_weights,
        token_of_row,
    )


def local_experts(
    ctx: Context, m: Moe, tokens: Value, weights: Value, factors: tuple[Operands, ...], named: list[Value]
) -> Value:
    """Run this rank's experts on sorted rows [rows, hidden]: up, activation times routing weight, down.

    ``factors``: operands of both matrices' adapters. ``named``: takes what the module's forward has variables for.
    """
    from memcheck.frameworks.transformers.moe import expert_tensors

    tape, rows = ctx.tape, tokens.shape[0]
    hidden, local = tokens.shape[-1], -(-m.experts // ctx.setting.expert)
    up_tensor, down_tensor = expert_tensors(m)
    up_width = 2 * m.width if m.gated else m.width
    offsets = tape.new((local,), "int32", "group offsets")
    inner = _product(ctx, tokens, up_tensor, (local, up_width, hidden), offsets)
    if factors:
        inner = with_adapter(tape, inner, tokens, factors[0], offsets, named)
    inner = _apply_bias(ctx, m, inner, up_tensor, local)
    activated = _weighted_activation(tape, inner, weights, m.width)
    del inner
    out = _product(ctx, activated, down_tensor, (local, hidden, m.width), offsets)
    if factors:
        out = with_adapter(tape, out, activated, factors[1], offsets, named)
    del activated
    if not m.bias:
        return out
    bias = _row_biases(ctx, out, down_tensor, local, "fp32")
    bias = mul(tape, bias, weights.view(rows, 1))
    out_and_bias = _add_rows(tape, out, bias)
    return cast(tape, out_and_bias, tokens.dtype)  # the function's variables hold product and biases until it returns


def _product(ctx: Context, x: Value, tensor: ParameterTensor, shape: tuple[int, int, int], offsets: Storage) -> Value:
    """Multiply sorted rows with the matrix of their expert: [rows, inputs] to [rows, outputs]."""
    weight = ctx.tape.parameter(ctx.parameter(tensor.name, shape))
    return grouped_mm(ctx.tape, x, weight, shape[1], offsets, tensor.name, shape)


def _apply_bias(ctx: Context, m: Moe, x: Value, tensor: ParameterTensor, local: int) -> Value:
    """Replay ``_apply_bias``: the bias of each row's expert is gathered and added, out of place."""
    if not m.bias:
        return x
    return _add_rows(ctx.tape, x, _row_biases(ctx, x, tensor, local, x.dtype))


def _row_biases(ctx: Context, x: Value, tensor: ParameterTensor, local: int, dtype: str) -> Value:
    """Gather the bias of each row's expert, [rows, outputs]."""
    bias = ctx.tape.parameter(ctx.parameter(tensor.name + "_bias", (local, x.shape[-1])))
    counts = ctx.tape.new((local,), "int64", "tokens of each expert")
    if bias.origin is not None:
        bias = cast(ctx.tape, bias, dtype)
    return index(ctx.tape, bias, counts, x.shape, "rows of biases")


def _add_rows(tape: Tape, x: Value, y: Value) -> Value:
    """Add two tensors of rows, in fp32 if either is fp32."""
    dtype = "fp32" if "fp32" in (x.dtype, y.dtype) else x.dtype
    out = tape.value(x.shape, dtype, "add biases")
    return operator(tape, out, (x, y), [GRAD_UNCHANGED if x.dtype == dtype else "add backward", GRAD_UNCHANGED])


def _weighted_activation(tape: Tape, x: Value, weights: Value, width: int) -> Value:
    """Apply the gated activation times the routing weight: [rows, up width] to [rows, ``width``]."""
    return operator(
        tape,
        tape.value((x.shape[0], width), x.dtype, "weighted activation"),
        (x, weights),
        ["weighted activation backward", (weights.shape, "fp32", "weights' gradient")],
        saves=(x, weights),
    )


def choices_here(ctx: Context, choices: int) -> Dim:
    """Return how many rows this rank's experts compute: its tokens' choices times the expected imbalance."""
    return Dim(math.ceil(choices * ctx.setting.expert_imbalance), "T*K")


def _gather_all(tape: Tape, x: Value, shape: tuple[int, ...], *, in_parts: bool) -> Value:
    """Replay ``_AllGatherConcatVarlenFn``: parts of all ranks are gathered, then concatenated to ``shape``.

    Backward sums in place and copies this rank's part. ``DTensor.full_tensor`` (``in_parts`` False) makes no parts, and
    reduce-scatters the gradient.
    """
    parts = tape.new(shape, x.dtype, "gathered parts") if in_parts else None
    out = tape.value(shape, x.dtype, "gathered tokens")
    del parts
    return operator(tape, out, x, "own gradient")


def _scatter_add(tape: Tape, summed: Value, rows: Value, ids: Storage) -> Value:
    """Replay ``y.scatter_add_(0, ids, rows)``; autograd keeps the ids, and the rows' gradient is gathered."""
    return operator(tape, Value(summed.storage, summed.shape, summed.dtype), rows, "gathered gradient", saves=(ids,))


def _tie_to_input(tape: Tape, summed: Value, tokens: Value) -> Value:
    """``y.add_(x.sum() * 0.0)``: the gradient of x is a whole tensor of zeros."""
    out = Value(summed.storage, summed.shape, summed.dtype)
    return operator(tape, out, (summed, tokens), [GRAD_UNCHANGED, "sum backward"])


def _own_sums(tape: Tape, x: Value, shape: tuple[int, ...]) -> Value:
    """``DTensor.redistribute``: a reduce-scatter, whose backward gathers."""
    return operator(tape, tape.value(shape, x.dtype, "own sums"), x, "gathered gradient of the sums")


def _copied(tape: Tape, x: Value, label: str) -> Value:
    return operator(tape, tape.value(x.shape, x.dtype, label), x, label + " backward")


def _narrowed(tape: Tape, x: Value, shape: tuple[int, ...]) -> Value:
    """``y.narrow(...).contiguous()``: zeros around its gradient."""
    return operator(tape, tape.value(shape, x.dtype, "own rows"), x, "narrow backward")
