"""How a token's experts are chosen and their outputs weighted: the router variants of transformers 5.

Everything here is O(tokens x experts); what matters is which of it stays, and in which dtype the scores leave
(models/*/modeling_*.py, class ``*TopKRouter``).

Phi 3.5's router, which draws two experts a token.

Source: transformers 5.24 modeling_phimoe.py (sparsemixer, PhimoeMultiplier).
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.kernels import linear, product, softmax
from memcheck.autograd.modules import l2_norm_pieces
from memcheck.autograd.operator import cast, cat, convert_weight, gather, index, mul, operator, scale, topk, unary
from memcheck.autograd.tensor import Storage, Tape, Value
from memcheck.errors import UnsupportedError
from memcheck.frameworks.transformers.adapters import merged_weight
from memcheck.models.module_types import HashedMoe, IdentityMoe
from memcheck.models.types import Moe, ParameterTensor
from memcheck.record import Record


class Choice(Record):
    """What a router returns. The sparse block holds all of it until its experts are done."""

    logits: Value
    scores: Value
    """[tokens, experts_per_token]"""
    indices: Storage


def route(ctx: Context, moe: Moe, x: Value) -> Choice:
    """Choose the experts of each token, as the family's router does. ``x``: [tokens, hidden].

    The scores are [tokens, experts_per_token], in the dtype in which the family returns them.
    """
    if moe.router == "scaled":
        return _scaled(ctx, moe, x)
    logits = _logits(ctx, moe, x)
    input_dtype = x.dtype
    del x
    if moe.router in ("sigmoid", "sigmoid-logits"):
        scores, indices = _sigmoid(ctx, moe, logits)
    elif moe.router in ("sigmoid-topk", "softmax-fp32-topk"):
        scores, indices = _topk_then_score(ctx, moe, logits, input_dtype)
    elif moe.router == "softmax-gather":
        scores, indices = _softmax_gather(ctx, moe, logits, input_dtype)
    elif moe.router == "softmax-groups":
        scores, indices = _softmax_groups(ctx, moe, logits)
    elif moe.router == "sqrt-softplus":
        scores, indices = _sqrt_softplus(ctx, moe, logits)
    elif moe.router == "sparsemixer":
        scores, indices = sparse_mixer(ctx.tape, logits)
    elif moe.router in ("softmax-topk", "softmax-chosen"):
        scores, indices = _softmax_of_chosen(ctx, moe, logits)
    else:
        scores, indices = _softmax(ctx, moe, logits)
    return Choice(logits, scores, indices)


def router_tensor(moe: Moe) -> ParameterTensor:
    """Return the router's matrix, [experts, hidden].

    Raises: UnsupportedError: the matrix scores more than the routed experts (``sigmoid-sink``).
    """
    for t in moe.tensors:
        if t.group == "router" and len(t.shape) == 2 and t.shape[0] == moe.experts:
            return t
    raise UnsupportedError(
        f"a {moe.router} router has no model here", "choose another framework", "/training/framework"
    )


def _logits(ctx: Context, moe: Moe, x: Value) -> Value:
    """Compute the router's logits, [tokens, experts], in fp32 if the family routes in fp32."""
    tape = ctx.tape
    tensor = router_tensor(moe)
    for t in moe.tensors:
        if t.fixed:  # added to the scores when experts are chosen, without a gradient
            ctx.constant(t)
    if tensor.linear:
        if moe.routing.input_fp32:
            x = cast(tape, x, "fp32")
        return linear(tape, x, ctx.replicated(tensor, moe.bias), tensor.name)
    weight = merged_weight(ctx, moe, tensor, tape.parameter(ctx.parameter(tensor.name, tensor.shape)))
    if moe.routing.input_fp32:
        return _fp32_logits(tape, moe, x, weight)
    bias = tape.parameter(ctx.parameter(tensor.name + ".bias", (moe.experts,))) if moe.bias else None
    return product(tape, x, weight, "router", bias)


def _fp32_logits(tape: Tape, moe: Moe, x: Value, weight: Value) -> Value:
    """Multiply fp32 copies of ``x`` [tokens, hidden] and of the router's weight [experts, hidden].

    modeling_ernie4_5_moe.py switches autocast off; LongCat Flash, which gathers scores as well, does not.
    """
    outer_autocast = tape.autocast
    if moe.router == "softmax-gather" and not isinstance(moe, IdentityMoe):
        tape.autocast = None
    logits = product(tape, cast(tape, x, "fp32"), convert_weight(tape, weight, "fp32"), "router")
    tape.autocast = outer_autocast
    return logits


def _softmax(ctx: Context, moe: Moe, logits: Value) -> tuple[Value, Storage]:
    """Choose by a softmax over all experts in fp32 (Mixtral, Qwen, OLMoE, DeepSeek V2).

    Returns scores and indices, [tokens, experts_per_token]. With ``scores_fp32`` the scores stay fp32 (Mixtral,
    DeepSeek V2); the other families cast them back to the logits' dtype.
    """
    tape = ctx.tape
    logits_dtype = logits.dtype
    probabilities = softmax(tape, logits, "fp32")
    del logits
    scores, indices = topk(tape, probabilities, moe.experts_per_token)
    del probabilities
    if moe.routing.normalised:
        scores = divide_by_sum(tape, scores)
    elif moe.routing.input_fp32:  # DeepSeek V2 multiplies by routed_scaling_factor instead
        scores = scale(tape, scores, "routed scaling")
    return (scores if moe.routing.scores_fp32 else cast(tape, scores, logits_dtype)), indices


def _softmax_of_chosen(ctx: Context, moe: Moe, logits: Value) -> tuple[Value, Storage]:
    """Choose the largest logits, then take the softmax over these alone (GPT-OSS, Granite, Aria).

    Returns scores and indices, [tokens, experts_per_token]. autocast runs the softmax in fp32.
    """
    tape = ctx.tape
    if moe.router == "softmax-chosen":  # AriaTextTopKRouter
        chosen, indices = topk(tape, logits, moe.experts_per_token)
        return softmax(tape, chosen, "fp32" if tape.autocast else None), indices
    if not moe.bias:  # GraniteMoeTopKRouter: F.linear(...).float()
        logits_dtype = logits.dtype
        logits = cast(tape, logits, "fp32")
        chosen, indices = topk(tape, logits, moe.experts_per_token)
        return cast(tape, softmax(tape, chosen), logits_dtype), indices
    chosen, indices = topk(tape, logits, moe.experts_per_token)
    return softmax(tape, chosen, chosen.dtype), indices


def _sigmoid(ctx: Context, moe: Moe, logits: Value) -> tuple[Value, Storage]:
    """Choose by sigmoid scores plus a correction bias; the bias is not part of the weights (DeepSeek V3, GLM-4 MoE,
    MiniMax M2).

    Returns scores and indices, [tokens, experts_per_token].
    """
    tape = ctx.tape
    keeps_logits_dtype = moe.router == "sigmoid-logits"  # LFM 2: in the dtype of the logits
    scores = unary(tape, logits if keeps_logits_dtype else cast(tape, logits, "fp32"), "sigmoid")
    for_choice = tape.new(scores.shape, "fp32", "scores for choice")
    indices = tape.new((*scores.shape[:-1], moe.experts_per_token), "int64", "topk indices")
    chosen = gather(tape, scores, indices)
    del scores
    if moe.routing.normalised:
        chosen = divide_by_sum(tape, chosen)
    if moe.routing.input_fp32 or keeps_logits_dtype:
        chosen = scale(tape, chosen, "routed scaling")
    del for_choice
    return chosen, indices


def _sqrt_softplus(ctx: Context, moe: Moe, logits: Value) -> tuple[Value, Storage]:
    """Choose by ``sqrt(softplus(logits))`` plus a correction, or by the token's id (DeepSeek V4).

    Returns scores, divided by their sum and times a constant, and indices. The correction is an fp32 buffer.
    """
    tape = ctx.tape
    scores = unary(tape, unary(tape, logits, "softplus"), "sqrt")
    for_choice = None if isinstance(moe, HashedMoe) else tape.new(scores.shape, "fp32", "scores for choice")
    indices = tape.new((*scores.shape[:-1], moe.experts_per_token), "int64", "topk indices")
    del for_choice
    chosen = gather(tape, scores, indices)
    del scores
    return scale(tape, over_sum(tape, chosen), "routed scaling"), indices


def _topk_then_score(ctx: Context, moe: Moe, logits: Value, input_dtype: str) -> tuple[Value, Storage]:
    """Choose the largest logits, then take an fp32 softmax or a sigmoid of these (Command A).

    Returns scores in the input's dtype, ``input_dtype``, and indices, [tokens, experts_per_token].
    """
    tape = ctx.tape
    chosen, indices = topk(tape, logits, moe.experts_per_token)
    if moe.router == "softmax-fp32-topk":
        return cast(tape, softmax(tape, chosen, "fp32"), input_dtype), indices
    chosen = unary(tape, chosen, "sigmoid")
    return cast(tape, over_sum(tape, chosen) if moe.routing.normalised else chosen, input_dtype), indices


def _choose(ctx: Context, moe: Moe, scores: Value) -> Storage:
    """Choose the largest of ``scores`` plus a bias, in fp32; no variable holds the sum. Returns the indices."""
    for_choice = ctx.tape.new(scores.shape, "fp32", "scores for choice")
    indices = ctx.tape.new((*scores.shape[:-1], moe.experts_per_token), "int64", "topk indices")
    del for_choice
    return indices


def _softmax_gather(ctx: Context, moe: Moe, logits: Value, input_dtype: str) -> tuple[Value, Storage]:
    """Choose by fp32 probabilities plus a bias, then gather the probabilities of the chosen experts (ERNIE 4.5).

    Returns scores in fp32 or in ``input_dtype``, and indices, [tokens, experts_per_token].
    """
    tape = ctx.tape
    probabilities = softmax(tape, logits, "fp32")
    indices = _choose(ctx, moe, probabilities)
    chosen = gather(tape, probabilities, indices)
    del probabilities
    if moe.routing.normalised:
        chosen = divide_by_sum(tape, chosen)
    return scale(tape, chosen, "routed scaling") if moe.routing.scores_fp32 else cast(
        tape, chosen, input_dtype
    ), indices


def _scaled(ctx: Context, moe: Moe, x: Value) -> Choice:
    """Choose by the softmax of a normed and scaled input, and scale each expert's score (Gemma 4's
    Gemma4TextRouter).
    """
    tape = ctx.tape
    scales = {t.name.rpartition(".")[2]: t for t in moe.tensors if t.group == "router" and not t.linear}
    x = l2_norm_pieces(tape, x)
    x = mul(tape, x, tape.parameter(ctx.parameter("router.scale", scales["scale"].shape)))
    x = scale(tape, x, "router scale")
    tensor = router_tensor(moe)
    logits = linear(tape, x, ctx.replicated(tensor), tensor.name)
    del x
    probabilities = softmax(tape, logits, "fp32")
    scores, indices = topk(tape, probabilities, moe.experts_per_token)
    scores = divide_by_sum(tape, scores)
    expert_scale = tape.parameter(ctx.parameter("router.per_expert_scale", scales["per_expert_scale"].shape))
    chosen_scale = index(tape, expert_scale, indices, scores.shape, "expert scales")
    return Choice(probabilities, mul(tape, scores, chosen_scale), indices)


def _softmax_groups(ctx: Context, moe: Moe, logits: Value) -> tuple[Value, Storage]:
    """Choose by probabilities in the logits' dtype, masked to the best groups for the choice alone (Mistral 4)."""
    tape = ctx.tape
    scores = softmax(tape, logits, "fp32" if tape.autocast else None)
    group_mask = tape.new(scores.shape, scores.dtype, "group mask")
    for_choice = tape.new(scores.shape, scores.dtype, "scores for choice")
    indices = tape.new((*scores.shape[:-1], moe.experts_per_token), "int64", "topk indices")
    chosen = gather(tape, scores, indices)
    del scores
    if moe.routing.normalised:
        chosen = divide_by_sum(tape, chosen)
    chosen = scale(tape, chosen, "routed scaling")
    del group_mask, for_choice
    return chosen, indices


def over_sum(tape: Tape, x: Value) -> Value:
    """Divide by the sum of each row: ``x / x.sum(-1, keepdim=True)``. Autograd keeps both."""
    total = tape.new((*x.shape[:-1], 1), x.dtype, "sum")
    return operator(tape, tape.value(x.shape, x.dtype, "div"), x, "div backward", saves=(x, total))


def divide_by_sum(tape: Tape, x: Value) -> Value:
    """Divide by the sum of each row in place: ``x /= x.sum(-1, keepdim=True)``. Autograd keeps a copy of x, and the
    sum.
    """
    total = tape.new((*x.shape[:-1], 1), x.dtype, "sum")
    copied = tape.new(x.shape, x.dtype, "copy before div_")
    return operator(tape, Value(x.storage, x.shape, x.dtype), x, "div backward", saves=(total, copied))


DRAWS = 2
"""``sparsemixer`` draws a first expert and, with that one masked, a second."""


def sparse_mixer(tape: Tape, logits: Value) -> tuple[Value, Storage]:
    """Draw two experts per token, and return their scores and indices, [tokens, 2]; autocast makes scores fp32."""
    scores = tuple(_draw_expert(tape, logits) for _ in range(DRAWS))
    shape = (*logits.shape[:-1], DRAWS)
    chosen = cat(tape, scores, shape, "multipliers")
    return chosen, tape.new(shape, "int64", "selected experts")


def _draw_expert(tape: Tape, logits: Value) -> Value:
    """Draw one expert per token: mask low scores, softmax the rest, and gather the probability of the drawn expert.

    ``logits``: [tokens, experts]. Returns [tokens, 1]. The mask and the softmax are kept, although the custom function
    gives them no gradient: their nodes are the nodes of its inputs.
    """
    per_token = (*logits.shape[:-1], 1)
    mask = tape.new(logits.shape, "bool", "mask of low scores")
    masked = Value(tape.new(logits.shape, logits.dtype, "masked gates"), logits.shape, logits.dtype)
    drawn = tape.new(per_token, "int64", "selected expert")
    gates = softmax(tape, masked, "fp32" if tape.autocast else None)
    del masked
    value = tape.new(per_token, gates.dtype, "gathered gate")
    return operator(
        tape,
        tape.value(per_token, gates.dtype, "multiplier"),
        logits,
        (gates.shape, gates.dtype, "gradient of scores"),
        saves=(mask, drawn, gates, value),
    )
