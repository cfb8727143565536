"""Expert parallelism of transformers: tokens are sent to the ranks of their experts, computed there, and sent back."""

from __future__ import annotations

import math

from memcheck.accounts.process_groups import NODE_RANKS
from memcheck.autograd.context import Context
from memcheck.autograd.engine import ctx_attribute
from memcheck.autograd.operator import GRAD_UNCHANGED, cast, grouped_mm, index, mul, operator
from memcheck.autograd.tensor import Dim, Storage, Tape, Value, ceil_div
from memcheck.errors import UnsupportedError
from memcheck.frameworks.stacked_adapters import demand_both, factors_here
from memcheck.frameworks.transformers.adapters import Operands, operands, with_adapter
from memcheck.frameworks.transformers.moe import expert_tensors
from memcheck.models.module_types import DenseDispatchMoe, StreamMoe
from memcheck.models.types import Moe, ParameterTensor


def dispatched_experts(ctx: Context, moe: Moe, x: Value, scores: Value) -> Value:
    """Run routed experts that are spread over ranks, and return their outputs for this rank's tokens, [tokens, hidden].

    ``scores``: the router's, [tokens, experts_per_token].
    """
    weights = cast(ctx.tape, cast(ctx.tape, scores, x.dtype), "fp32")
    if ctx.setting.dispatcher == "torch":
        return _all_gather_experts(ctx, moe, x, weights)
    if ctx.setting.dispatcher == "hybridep":
        return _hybridep_experts(ctx, moe, x, weights)
    return _deepep_experts(ctx, moe, x, weights)


def require_whole_experts(ctx: Context, moe: Moe) -> None:
    """Check that these experts can be on several ranks.

    Raises:
        UnsupportedError: the experts are split, adapted in part, or combined with a dense network of the layer.
    """
    help = "choose parallelism.expert: 1, or training.framework: torchtitan or megatron"
    if isinstance(moe, (DenseDispatchMoe, StreamMoe)):
        raise UnsupportedError("these experts have no model on several ranks", help, "/parallelism/expert")
    if ctx.tp > 1 or ctx.setting.expert_tensor_parallel > 1:
        message = "memcheck has no model of experts on several ranks with tensor parallelism"
        raise UnsupportedError(message, help, "/parallelism/tensor")
    demand_both(ctx.setting.adapter, moe)


def _all_gather_experts(ctx: Context, moe: Moe, x: Value, weights: Value) -> Value:
    """Gather all tokens on every rank, run the local experts on their tokens, and sum the results of all ranks in fp32.

    ``x``: [tokens, hidden]; so is what is returned. ``weights``: routing weights, [tokens, experts_per_token]. Experts
    with adapters gather and sum through DTensors: one all-gather, and a reduce-scatter to each rank's tokens. Source:
    NVIDIA-NeMo/Automodel ``components/moe/experts.py``, GroupedExperts.
    """
    tape, expert_ranks, experts_per_token = ctx.tape, ctx.setting.expert_parallel, moe.experts_per_token
    local_tokens, hidden = x.shape[0], x.shape[-1]
    all_tokens_count = Dim(local_tokens * expert_ranks, "T*ep")
    input_dtype = x.dtype
    adapted = bool(factors_here(moe, ctx.setting.adapter, expert_ranks))
    all_tokens = _gather_all(tape, x, (all_tokens_count, hidden), in_parts=not adapted)
    del x
    all_weights = _gather_all(tape, weights, (all_tokens_count, experts_per_token), in_parts=not adapted)
    all_indices = tape.new((all_tokens_count, experts_per_token), "int64", "gathered indices")
    rows = choices_here(ctx, local_tokens * experts_per_token)
    mask = tape.new((all_tokens_count,), "bool", "gathered token mask")
    factors = operands(ctx, moe, input_dtype)
    tokens, probabilities, token_of_row = _permute_tokens(tape, all_tokens, all_weights, all_indices, rows)
    slots = tape.new((rows,), "int64", "sorted slot ids") if not adapted else None
    summed = Value(tape.new((all_tokens_count, hidden), "fp32", "sum of experts"), (all_tokens_count, hidden), "fp32")
    module_variables: list[Value] = []
    out = local_experts(ctx, moe, tokens, probabilities, factors, module_variables)
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
    """Replay ``_permute_tokens_for_grouped_mm``: pick the tokens of this rank's experts, sorted by expert.

    ``all_weights``, ``all_indices``: routing of all tokens, [all tokens, experts_per_token]. Returns the picked tokens
    [``rows``, hidden], their routing weights, and the number of the token in each row.
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
    ctx: Context, moe: Moe, tokens: Value, weights: Value, factors: tuple[Operands, ...], named: list[Value]
) -> Value:
    """Run this rank's experts on sorted rows [rows, hidden]: up, activation times routing weight, down.

    ``factors``: operands of both matrices' adapters. ``named``: takes what the module's forward has variables for.
    """
    tape, rows = ctx.tape, tokens.shape[0]
    hidden, local = tokens.shape[-1], ceil_div(moe.experts, ctx.setting.expert_parallel)
    up_tensor, down_tensor = expert_tensors(moe)
    up_width = 2 * moe.width if moe.gated else moe.width
    offsets = tape.new((local,), "int32", "group offsets")
    inner = _product(ctx, tokens, up_tensor, (local, up_width, hidden), offsets)
    if factors:
        inner = with_adapter(tape, inner, tokens, factors[0], offsets, named)
    inner = _apply_bias(ctx, moe, inner, up_tensor, local)
    activated = _weighted_activation(tape, inner, weights, moe.width)
    del inner
    out = _product(ctx, activated, down_tensor, (local, hidden, moe.width), offsets)
    if factors:
        out = with_adapter(tape, out, activated, factors[1], offsets, named)
    del activated
    if not moe.bias:
        return out
    bias = _row_biases(ctx, out, down_tensor, local, "fp32")
    bias = mul(tape, bias, weights.view(rows, 1))
    out_and_bias = _add_rows(tape, out, bias)
    return cast(tape, out_and_bias, tokens.dtype)  # the function's variables hold product and biases until it returns


def _product(ctx: Context, x: Value, tensor: ParameterTensor, shape: tuple[int, int, int], offsets: Storage) -> Value:
    """Multiply sorted rows with the matrix of their expert: [rows, inputs] to [rows, outputs]."""
    weight = ctx.tape.parameter(ctx.parameter(tensor.name, shape))
    return grouped_mm(ctx.tape, x, weight, shape[1], offsets, tensor.name, shape)


def _apply_bias(ctx: Context, moe: Moe, x: Value, tensor: ParameterTensor, local: int) -> Value:
    """Replay ``_apply_bias``: the bias of each row's expert is gathered and added, out of place."""
    if not moe.bias:
        return x
    return _add_rows(ctx.tape, x, _row_biases(ctx, x, tensor, local, x.dtype))


def _row_biases(ctx: Context, x: Value, tensor: ParameterTensor, local: int, dtype: str) -> Value:
    """Gather the bias of each row's expert, [rows, outputs]."""
    bias = ctx.tape.parameter(ctx.parameter(tensor.name + "_bias", (local, x.shape[-1])))
    counts = ctx.tape.new((local,), "int64", "tokens of each expert")
    if bias.needs_grad:
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
    gathered = tape.new(shape, x.dtype, "gathered parts") if in_parts else None
    out = tape.value(shape, x.dtype, "gathered tokens")
    del gathered
    return operator(tape, out, x, "own gradient")


def _scatter_add(tape: Tape, summed: Value, rows: Value, ids: Storage) -> Value:
    """Replay ``y.scatter_add_(0, ids, rows)``; autograd keeps the ids, and the rows' gradient is gathered."""
    return operator(tape, Value(summed.storage, summed.shape, summed.dtype), rows, "gathered gradient", saves=(ids,))


def _tie_to_input(tape: Tape, summed: Value, tokens: Value) -> Value:
    """Compute ``y.add_(x.sum() * 0.0)``: the gradient of x is a whole tensor of zeros."""
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


Handle = tuple[Storage, ...]


def _deepep_experts(ctx: Context, moe: Moe, x: Value, weights: Value) -> Value:
    """Run local experts with DeepEP: each token is sent once to every rank that has one of its experts.

    ``x``: [tokens, hidden]; so is what is returned. ``weights``: routing weights, [tokens, experts_per_token]. The
    receiving rank copies a token for each of its chosen experts. Variables of the module and the handle live to the end
    of its forward.
    """
    tape, expert_ranks, experts_per_token = ctx.tape, ctx.setting.expert_parallel, moe.experts_per_token
    local_tokens, hidden = x.shape[0], x.shape[-1]
    # the mean number of ranks that a token reaches if its experts are drawn evenly
    ranks_per_token = expert_ranks * (1 - (1 - 1 / expert_ranks) ** experts_per_token)
    received = Dim(math.ceil(local_tokens * ranks_per_token * ctx.setting.expert_imbalance), "T*reached")
    experts_here = ceil_div(moe.experts, expert_ranks)
    handle = _handle(
        tape, x.origin or weights.origin, *_dispatch_maps(tape, local_tokens, expert_ranks, experts_per_token, received)
    )
    received_tokens, probabilities = _dispatch(tape, x, weights, (received, experts_per_token), handle)
    indices = tape.new((received, experts_per_token), "int64", "received indices")
    routing_map, multihot = _multihot(tape, probabilities, experts_here)
    del indices, probabilities
    rows = choices_here(ctx, local_tokens * experts_per_token)
    row_ids = tape.new((received, 2 * experts_here + 1), "int32", "row id map")
    tokens, scores = _permute(tape, received_tokens, multihot, rows, row_ids)
    del received_tokens, multihot
    module_variables: list[Value] = []
    out = local_experts(ctx, moe, tokens, scores, operands(ctx, moe, x.dtype), module_variables)
    del tokens, scores
    summed = _unpermute(tape, out, (received, hidden), row_ids)
    del routing_map, row_ids
    # variables of the module's forward hold what is left until the combine has returned
    return _combine(tape, summed, (local_tokens, hidden), handle)


def _hybridep_experts(ctx: Context, moe: Moe, x: Value, weights: Value) -> Value:
    """Run local experts with HybridEP: tokens arrive in its own buffers, and leave them as rows sorted by expert.

    ``x``: [tokens, hidden]; so is what is returned.
    """
    tape, expert_ranks = ctx.tape, ctx.setting.expert_parallel
    local_tokens, hidden = x.shape[0], x.shape[-1]
    all_tokens, experts_here = Dim(local_tokens * expert_ranks, "T*ep"), ceil_div(moe.experts, expert_ranks)
    routing, multihot = _multihot(tape, weights, moe.experts)
    global_routing_map = tape.new((all_tokens, moe.experts), "bool", "global routing map")
    handle = _handle(
        tape,
        x.origin or weights.origin,
        tape.new((local_tokens, expert_ranks), "int32", "sparse to dense map"),
        tape.new((all_tokens, experts_here), "bool", "local expert routing map"),
        tape.new((all_tokens, experts_here), "int32", "dense to expert map"),
    )
    del global_routing_map
    rows = choices_here(ctx, local_tokens * moe.experts_per_token)
    tokens, scores = _dispatch(tape, x, multihot, (rows,), handle)
    del multihot
    module_variables: list[Value] = []
    out = local_experts(ctx, moe, tokens, scores, operands(ctx, moe, x.dtype), module_variables)
    del tokens, scores, routing
    return _combine(tape, out, (local_tokens, hidden), handle)


def _dispatch_maps(tape: Tape, local_tokens: int, expert_ranks: int, choices: int, received: int) -> list[Storage]:
    """Allocate the index tensors of DeepEP's ``Buffer.dispatch`` handle, which combine and backward read.

    ``received``: tokens that arrive on this rank. ``choices``: experts per token. Beyond one node of eight ranks there
    are those of ``internode_dispatch``.
    """
    maps = [tape.new((local_tokens, expert_ranks), "bool", "is_token_in_rank")]
    if expert_ranks <= NODE_RANKS:
        return [
            *maps,
            tape.new((local_tokens, expert_ranks), "int32", "send_head"),
            tape.new((received,), "int32", "recv_src_idx"),
        ]
    nodes = ceil_div(expert_ranks, NODE_RANKS)
    # tokens that this rank forwards within its node: the mean number of nodes that a token reaches, times its tokens
    forwarded = math.ceil(local_tokens * nodes * (1 - (1 - 1 / nodes) ** choices))
    maps.append(tape.new((local_tokens, nodes), "int32", "send_rdma_head"))
    maps.append(tape.new((forwarded, NODE_RANKS), "int32", "send_nvl_head"))
    return [*maps, tape.new((received, 2), "int32", "recv_src_meta")]


def _handle(tape: Tape, graph: object, *maps: Storage) -> Handle:
    """Keep the maps that dispatch and combine need as an attribute of ctx, if there is a graph."""
    if graph is None or not tape.grad_enabled:
        return ()
    return tuple(storage for storage in maps if ctx_attribute(tape, storage) is not None)


def _dispatch(tape: Tape, x: Value, weights: Value, shape: tuple[int, ...], handle: Handle) -> tuple[Value, Value]:
    """Send rows and their routing weights to the experts' ranks; backward combines both gradients."""
    out = tape.value((shape[0], x.shape[-1]), x.dtype, "dispatched tokens")
    probabilities = tape.value(shape, "fp32", "dispatched weights")
    weights_grad = (weights.shape, "fp32", "combined weights' gradient")
    out = operator(tape, out, (x, weights), ["combined gradient", weights_grad], attributes=handle)
    return out, operator(tape, probabilities, weights, None)


def _multihot(tape: Tape, weights: Value, experts: int) -> tuple[Storage, Value]:
    """Replay ``IndicesToMultihot``: weights [tokens, experts] and the routing map; autograd keeps the positions."""
    rows = weights.shape[0]
    routing_map = tape.new((rows, experts), "bool", "routing map")
    out = tape.value((rows, experts), "fp32", "multihot weights")
    positions = tape.new((rows, experts), "int32", "position map")
    return routing_map, operator(tape, out, weights, (weights.shape, "fp32", "multihot backward"), saves=(positions,))


def _permute(tape: Tape, received_tokens: Value, multihot: Value, rows: Dim, row_ids: Storage) -> tuple[Value, Value]:
    """Replay ``moe_permute_with_probs``: return the received tokens sorted by expert, [rows, hidden], and their
    weights.

    ``multihot``: weights of the local experts, 0 where a token does not go. Autograd saves the row map ``row_ids``.
    """
    out = tape.value((rows, received_tokens.shape[-1]), received_tokens.dtype, "permuted tokens")
    scores = tape.value((rows,), "fp32", "permuted weights")
    out = operator(
        tape,
        out,
        (received_tokens, multihot),
        ["unpermuted gradient", (multihot.shape, "fp32", "weights' gradient")],
        saves=(row_ids,),
    )
    return out, operator(tape, scores, multihot, None)


def _unpermute(tape: Tape, x: Value, shape: tuple[int, ...], row_ids: Storage) -> Value:
    """Replay ``moe_unpermute``: the copies of a token are summed, to [received tokens, hidden]."""
    return operator(tape, tape.value(shape, x.dtype, "unpermuted tokens"), x, "permuted gradient", saves=(row_ids,))


def _combine(tape: Tape, x: Value, shape: tuple[int, ...], handle: Handle) -> Value:
    """Replay ``FusedCombine``: tokens return to their rank; backward dispatches the gradient again."""
    return operator(tape, tape.value(shape, x.dtype, "combined tokens"), x, "dispatched gradient", attributes=handle)
