"""Experts that a class runs one after the other, where transformers' grouped products do not reach them.

modeling_dbrx.py (DbrxExperts), modeling_step3p7.py (Step3p7Experts), modeling_longcat_flash.py (LongcatFlashExperts,
the last of which hand tokens on as they are) of transformers 5.23: each expert's tokens are
looked up, and what it makes of them is added to a tensor of all in place. Its matrices are picked out of a stack, whose
gradient is made whole for every one of them.

Llama 4 in transformers: every expert is given every token, multiplied by its score (zero for most).

Source: transformers 5.23 models/llama4/modeling_llama4.py, Llama4TextMoe and Llama4TextExperts.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.kernels import linear
from memcheck.autograd.modules import activation, enter_tensor_parallel, leave_tensor_parallel
from memcheck.autograd.operator import GRAD_UNCHANGED, cast, factors, index, mul, operator, topk, unary
from memcheck.autograd.tensor import SAVED_WEIGHT, Dim, Storage, Tape, Value, ceil_div
from memcheck.errors import UnsupportedError
from memcheck.frameworks.stacked_adapters import adapted_tensors
from memcheck.frameworks.transformers.mlp import mlp
from memcheck.frameworks.transformers.moe import expert_tensors, expert_weights, gate, shared_mlp
from memcheck.frameworks.transformers.router import router_tensor
from memcheck.models.module_types import IdentityMoe
from memcheck.models.types import Moe
from memcheck.record import Record

LOOP_TURNS = 32
"""Turns in which a loop over experts is replayed at most; each stands for several experts if there are more. What the
turns save for backward adds up to what all experts save."""


class ExpertStack(Record):
    """One parameter of all experts of a rank, which the loop indexes by expert."""

    name: str
    weight: Value
    """[experts, outputs, inputs]."""
    outputs: int


def looped_experts(ctx: Context, moe: Moe, x: Value, scores: Value) -> Value:
    """Run experts one after the other: each adds ``expert(x[tokens]) * scores[tokens]`` in place to a sum of all
    tokens.

    ``x``: [tokens, hidden]; so is what is returned. ``scores``: the router's. Every expert is assumed to get the same
    number of tokens.

    Raises:
        UnsupportedError: stacked experts have adapters.
    """
    tape, (tokens, hidden) = ctx.tape, x.shape
    total = tape.value(x.shape, x.dtype, "sum of experts")
    identities = moe.identities if isinstance(moe, IdentityMoe) else 0
    if not identities:
        _refuse_adapters(ctx, moe)
    classes = moe.experts if identities else moe.experts + 1
    mask = tape.new((tokens, moe.experts_per_token, classes), "int64", "one_hot")
    local_experts = ceil_div(moe.experts - identities, ctx.setting.expert_parallel)
    experts_per_rank = ceil_div(moe.experts, ctx.setting.expert_parallel)
    width = ceil_div(moe.width, ctx.setting.expert_tensor_parallel)
    *up_tensors, down_tensor = (t for t in moe.tensors if t.group == "experts")
    outputs = 2 * width if moe.gated and len(up_tensors) == 1 else width
    shapes = dict.fromkeys(up_tensors, (experts_per_rank, outputs, hidden))
    weights = expert_weights(ctx, moe, {**shapes, down_tensor: (local_experts, hidden, width)})
    ups = [ExpertStack(tensor.name, weights(tensor), outputs) for tensor in up_tensors]
    down = ExpertStack(down_tensor.name, weights(down_tensor), hidden)
    variables: list[Value] = []
    turns = min(local_experts, LOOP_TURNS)
    experts_per_turn = ceil_div(local_experts, turns)
    rows = Dim(ceil_div(tokens * moe.experts_per_token * experts_per_turn, experts_per_rank), "T*K/E")
    for _ in range(turns):
        row_index, gathered = _gather(tape, x, rows)
        projected = [picked_product(tape, gathered, up, experts_per_turn) for up in ups]
        if identities:
            variables = [gathered, *projected]  # of LongCat's loop, until the next turn assigns them again
        del gathered
        inner = _activated(tape, moe, projected)
        out = picked_product(tape, inner, down, experts_per_turn)
        del inner
        total = _weighted(tape, total, out, scores, row_index)
        del out, row_index
    # identity experts, which return their input (LongCat Flash)
    turns = min(identities, LOOP_TURNS)
    rows = Dim(ceil_div(tokens * moe.experts_per_token * identities, moe.experts * max(1, turns)), "T*K/E")
    for _ in range(turns):
        row_index, gathered = _gather(tape, x, rows)
        total = _weighted(tape, total, gathered, scores, row_index)
        del gathered, row_index
    del mask, variables  # variables of the forward, which live to its end
    return total


def _refuse_adapters(ctx: Context, moe: Moe) -> None:
    """Raise ``UnsupportedError`` if stacked experts have adapters."""
    adapted = {stack.name for stack in adapted_tensors(ctx.setting.adapter, moe)}
    if any(t.name in adapted for t in moe.tensors if t.group == "experts"):
        raise UnsupportedError(
            "adapters of stacked experts that run one after the other have no memory model",
            "name no stacked experts in lora.target_parameters",
            "/training/lora/target_parameters",
        )


def _gather(tape: Tape, x: Value, rows: int) -> tuple[Storage, Value]:
    """Return token and choice of each of ``rows`` rows that experts get, [rows, 2], and these rows of ``x``."""
    row_index = tape.new((rows, 2), "int64", "token and choice of each row")
    return row_index, index(tape, x, row_index, (rows, x.shape[-1]), "gather tokens")


def _activated(tape: Tape, moe: Moe, projected: list[Value]) -> Value:
    """Return the input of the down product, [rows, width]. ``projected``: outputs of the up products; it is emptied."""
    if len(projected) > 1:
        inner = mul(tape, activation(tape, projected[0], moe.activation), projected[1])
    elif moe.gated:
        inner = gate(tape, moe, projected[0])
    else:
        inner = activation(tape, projected[0], moe.activation)
    projected.clear()
    return inner


def _weighted(tape: Tape, total: Value, out: Value, scores: Value, row_index: Storage) -> Value:
    """Multiply an expert's output by its scores, and add it in place to ``total``, the sum of all tokens' experts.

    ``row_index``: token and choice of each row of ``out``.
    """
    row_scores = index(tape, scores, row_index, (out.shape[0], 1), "gather scores")
    weighted = mul(tape, out, row_scores)
    del out, row_scores
    return added(tape, total, cast(tape, weighted, total.dtype), row_index)


def picked_product(tape: Tape, x: Value, stack: ExpertStack, experts: int) -> Value:
    """Run ``F.linear(x, stack[expert])`` for ``experts`` experts of equal load: [rows, inputs] to [rows, outputs].

    ``stack[expert]`` is no leaf, so that autocast's copy is not cached, and each product saves its own. The gradient is
    written into zeros of the stack's size (``select_backward``), which are added to those of other experts.
    """
    label, outputs, inputs = stack.name, stack.outputs, x.shape[-1]
    stack_shape, stack_dtype = stack.weight.shape, stack.weight.dtype
    compute_dtype = tape.autocast or stack_dtype
    is_cast = compute_dtype != stack_dtype
    autocast_copies = tape.new((experts, outputs, inputs), compute_dtype, "autocast copies") if is_cast else None
    x = cast(tape, x, compute_dtype)
    out = tape.value((x.shape[0], outputs), compute_dtype, label)
    x_needs_grad, weight_needs_grad, x_shape = x.needs_grad, stack.weight.needs_grad, x.shape
    multiplied_weight = autocast_copies or stack.weight.storage or SAVED_WEIGHT
    saved = (x.storage if weight_needs_grad else None, multiplied_weight if x_needs_grad else None)
    del multiplied_weight, autocast_copies

    def linear_backward(grad: Storage) -> list[Storage | None]:
        """Return the gradients of the rows and of the picked matrix, in the order of autograd."""
        weight_grad = tape.new((outputs, inputs), compute_dtype, label + " dW") if weight_needs_grad else None
        x_grad = tape.new(x_shape, compute_dtype, label + " dX") if x_needs_grad else None
        cast_grad = weight_grad
        if weight_needs_grad and is_cast:
            cast_grad = tape.new((outputs, inputs), stack_dtype, "to backward")
        del weight_grad
        stack_grad = tape.new(stack_shape, stack_dtype, "select backward") if weight_needs_grad else None
        del cast_grad
        return [x_grad, stack_grad]

    return tape.record(out, (x, stack.weight), linear_backward, saves_first=True, saves=saved)


def added(tape: Tape, total: Value, part: Value, rows: Storage) -> Value:
    """Replay ``total.index_add_(0, rows, part)``, which keeps the index, and ``part`` for its shape
    (derivatives.yaml).
    """
    out = Value(total.storage, total.shape, total.dtype)
    return operator(tape, out, (total, part), [GRAD_UNCHANGED, "index_select"], saves=(rows, part))


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
