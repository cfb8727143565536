"""How a token's experts are chosen and their outputs weighted: the router variants of transformers 5.

Everything here is O(tokens x experts); what matters is which of it stays, and in which dtype the scores leave
(models/*/modeling_*.py, class ``*TopKRouter``).
"""

from __future__ import annotations

from memcheck.autograd.attention import softmax
from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import cast, convert_weight, mul, scale, unary
from memcheck.autograd.indexing import gather, index, topk
from memcheck.autograd.matrix import linear, product
from memcheck.autograd.norm import l2_norm_pieces
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Storage, Tape, Value
from memcheck.errors import UnsupportedError
from memcheck.frameworks.transformers.adapters import merged_weight
from memcheck.models.feed_forward_types import HashedMoe, IdentityMoe
from memcheck.models.types import Moe, ParameterTensor
from memcheck.record import Record


class Choice(Record):
    """What a router returns. The block holds all of it until its experts are done."""

    logits: Value
    scores: Value
    """[tokens, experts_per_token]"""
    indices: Storage


def route(ctx: Context, m: Moe, x: Value) -> Choice:
    """The router of this family."""
    if m.router == "scaled":
        return _scaled(ctx, m, x)
    logits = _logits(ctx, m, x)
    narrow = x.dtype
    del x
    if m.router in ("sigmoid", "sigmoid-logits"):
        scores, indices = _sigmoid(ctx, m, logits)
    elif m.router in ("sigmoid-topk", "softmax-fp32-topk"):
        scores, indices = _chosen_first(ctx, m, logits, narrow)
    elif m.router == "softmax-gather":
        scores, indices = _softmax_gather(ctx, m, logits, narrow)
    elif m.router == "softmax-groups":
        scores, indices = _softmax_groups(ctx, m, logits)
    elif m.router == "sqrt-softplus":
        scores, indices = _rooted_softplus(ctx, m, logits)
    elif m.router == "sparsemixer":
        from memcheck.frameworks.transformers.sparse_mixer import sparse_mixer

        scores, indices = sparse_mixer(ctx.tape, logits)
    elif m.router in ("softmax-topk", "softmax-chosen"):
        scores, indices = _softmax_of_chosen(ctx, m, logits)
    else:
        scores, indices = _softmax(ctx, m, logits)
    return Choice(logits, scores, indices)


def router_tensor(m: Moe) -> ParameterTensor:
    """The matrix of the scores.

    Raises:
        UnsupportedError: it scores more than the routed experts (``sigmoid-sink``), which this code does not.
    """
    for t in m.tensors:
        if t.group == "router" and len(t.shape) == 2 and t.shape[0] == m.experts:
            return t
    raise UnsupportedError(f"a {m.router} router has no model here", "choose another framework", "/training/framework")


def _logits(ctx: Context, m: Moe, x: Value) -> Value:
    tape = ctx.tape
    tensor = router_tensor(m)
    for fixed in (t for t in m.tensors if t.fixed):  # added to the scores when experts are chosen, without a gradient
        ctx.constant(fixed)
    if tensor.linear:
        if m.router_fp32:
            x = cast(tape, x, "fp32")
        return linear(tape, x, ctx.replicated(tensor, m.bias), tensor.name)
    weight = merged_weight(ctx, m, tensor, tape.parameter(ctx.parameter(tensor.name, tensor.shape)))
    if m.router_fp32:
        autocast = tape.autocast
        # modeling_ernie4_5_moe.py switches autocast off; LongCat Flash, which gathers scores as well, does not
        apart = m.router == "softmax-gather" and not isinstance(m, IdentityMoe)
        tape.autocast = None if apart else autocast
        logits = product(tape, cast(tape, x, "fp32"), convert_weight(tape, weight, "fp32"), "router")
        tape.autocast = autocast
        return logits
    bias = tape.parameter(ctx.parameter(tensor.name + ".bias", (m.experts,))) if m.bias else None
    return product(tape, x, weight, "router", bias)


def _softmax(ctx: Context, m: Moe, logits: Value) -> tuple[Value, Storage]:
    """Mixtral, Qwen, OLMoE, DeepSeek V2: softmax over all experts in fp32, the best are kept.

    ``scores_fp32`` is what Mixtral and DeepSeek V2 return; the others cast back to the logits' dtype.
    """
    tape = ctx.tape
    narrow = logits.dtype
    probabilities = softmax(tape, logits, "fp32")
    del logits
    scores, indices = topk(tape, probabilities, m.experts_per_token)
    del probabilities
    if m.normalised_scores:
        scores = divide_by_sum(tape, scores)
    elif m.router_fp32:
        scores = scale(tape, scores, "routed scaling")
    return (scores if m.scores_fp32 else cast(tape, scores, narrow)), indices


def _softmax_of_chosen(ctx: Context, m: Moe, logits: Value) -> tuple[Value, Storage]:
    """GPT-OSS, Granite, Aria: the best logits, then a softmax over them, which autocast makes fp32."""
    tape = ctx.tape
    if m.router == "softmax-chosen":  # AriaTextTopKRouter
        chosen, indices = topk(tape, logits, m.experts_per_token)
        return softmax(tape, chosen, "fp32" if tape.autocast else None), indices
    if not m.bias:  # GraniteMoeTopKRouter: F.linear(...).float()
        narrow = logits.dtype
        logits = cast(tape, logits, "fp32")
        chosen, indices = topk(tape, logits, m.experts_per_token)
        return cast(tape, softmax(tape, chosen), narrow), indices
    chosen, indices = topk(tape, logits, m.experts_per_token)
    return softmax(tape, chosen, chosen.dtype), indices


def _sigmoid(ctx: Context, m: Moe, logits: Value) -> tuple[Value, Storage]:
    """DeepSeek V3, GLM-4 MoE, MiniMax M2: sigmoid scores, chosen with a bias that is not part of the weight."""
    tape = ctx.tape
    own = m.router == "sigmoid-logits"  # LFM 2: in the dtype of the logits
    scores = unary(tape, logits if own else cast(tape, logits, "fp32"), "sigmoid")
    for_choice = tape.new(scores.shape, "fp32", "scores for choice")
    indices = tape.new((*scores.shape[:-1], m.experts_per_token), "int64", "topk indices")
    chosen = gather(tape, scores, indices)
    del scores
    if m.normalised_scores:
        chosen = divide_by_sum(tape, chosen)
    if m.router_fp32 or own:
        chosen = scale(tape, chosen, "routed scaling")
    del for_choice
    return chosen, indices


def _rooted_softplus(ctx: Context, m: Moe, logits: Value) -> tuple[Value, Storage]:
    """DeepSeek V4: ``sqrt(softplus(logits))``, chosen with a correction or by the token, by their
    sum, times a constant. The correction is an fp32 buffer.
    """
    tape = ctx.tape
    scores = unary(tape, unary(tape, logits, "softplus"), "sqrt")
    for_choice = None if isinstance(m, HashedMoe) else tape.new(scores.shape, "fp32", "scores for choice")
    indices = tape.new((*scores.shape[:-1], m.experts_per_token), "int64", "topk indices")
    del for_choice
    chosen = gather(tape, scores, indices)
    del scores
    return scale(tape, over_sum(tape, chosen), "routed scaling"), indices


def _chosen_first(ctx: Context, m: Moe, logits: Value, narrow: str) -> tuple[Value, Storage]:
    """Command A's experts: the best logits, then an fp32 softmax or a sigmoid of them, cast to the input's dtype."""
    tape = ctx.tape
    chosen, indices = topk(tape, logits, m.experts_per_token)
    if m.router == "softmax-fp32-topk":
        return cast(tape, softmax(tape, chosen, "fp32"), narrow), indices
    chosen = unary(tape, chosen, "sigmoid")
    return cast(tape, over_sum(tape, chosen) if m.normalised_scores else chosen, narrow), indices


def _chosen(ctx: Context, m: Moe, scores: Value) -> Storage:
    """Indices of the best of fp32 ``scores`` and a bias, whose sum no variable holds."""
    for_choice = ctx.tape.new(scores.shape, "fp32", "scores for choice")
    indices = ctx.tape.new((*scores.shape[:-1], m.experts_per_token), "int64", "topk indices")
    del for_choice
    return indices


def _softmax_gather(ctx: Context, m: Moe, logits: Value, narrow: str) -> tuple[Value, Storage]:
    """ERNIE 4.5: fp32 probabilities, of which a bias chooses some; those are gathered and cast to the input's dtype."""
    tape = ctx.tape
    probabilities = softmax(tape, logits, "fp32")
    indices = _chosen(ctx, m, probabilities)
    chosen = gather(tape, probabilities, indices)
    del probabilities
    if m.normalised_scores:
        chosen = divide_by_sum(tape, chosen)
    return scale(tape, chosen, "routed scaling") if m.scores_fp32 else cast(tape, chosen, narrow), indices


def _scaled(ctx: Context, m: Moe, x: Value) -> Choice:
    """Gemma 4: normed and scaled input, fp32 softmax, the best divided by their sum and times their own scale."""
    tape = ctx.tape
    scales = {t.name.rpartition(".")[2]: t for t in m.tensors if t.group == "router" and not t.linear}
    x = l2_norm_pieces(tape, x)
    x = mul(tape, x, tape.parameter(ctx.parameter("router.scale", scales["scale"].shape)))
    x = scale(tape, x, "router scale")
    tensor = router_tensor(m)
    logits = linear(tape, x, ctx.replicated(tensor), tensor.name)
    del x
    probabilities = softmax(tape, logits, "fp32")
    scores, indices = topk(tape, probabilities, m.experts_per_token)
    scores = divide_by_sum(tape, scores)
    each = tape.parameter(ctx.parameter("router.per_expert_scale", scales["per_expert_scale"].shape))
    chosen = index(tape, each, indices, scores.shape, "expert scales")
    return Choice(probabilities, mul(tape, scores, chosen), indices)


def _softmax_groups(ctx: Context, m: Moe, logits: Value) -> tuple[Value, Storage]:
    """Mistral 4: probabilities in the logits' dtype, masked to the best groups for the choice alone."""
    tape = ctx.tape
    scores = softmax(tape, logits, "fp32" if tape.autocast else None)
    group_mask = tape.new(scores.shape, scores.dtype, "group mask")
    for_choice = tape.new(scores.shape, scores.dtype, "scores for choice")
    indices = tape.new((*scores.shape[:-1], m.experts_per_token), "int64", "topk indices")
    chosen = gather(tape, scores, indices)
    del scores
    if m.normalised_scores:
        chosen = divide_by_sum(tape, chosen)
    chosen = scale(tape, chosen, "routed scaling")
    del group_mask, for_choice
    return chosen, indices


def over_sum(tape: Tape, x: Value) -> Value:
    """``x / x.sum(-1, keepdim=True)``: keeps both."""
    total = tape.new((*x.shape[:-1], 1), x.dtype, "sum")
    return operator(tape, tape.value(x.shape, x.dtype, "div"), x, "div backward", saves=(x, total))


def divide_by_sum(tape: Tape, x: Value) -> Value:
    """``x /= x.sum(-1, keepdim=True)``: dividing in place keeps a copy of x, and the sum."""
    total = tape.new((*x.shape[:-1], 1), x.dtype, "sum")
    copied = tape.new(x.shape, x.dtype, "copy before div_")
    return operator(tape, Value(x.storage, x.shape, x.dtype), x, "div backward", saves=(total, copied))
