"""Eager attention, with and without sinks: what scores, their softmax and its product with the values keep.

Shapes are [batch, heads, sequence, head_dim] in whatever strides; only sizes matter here. A sink is a learned logit of
a head. Sources with each function: transformers 5.23, the family's eager_attention_forward.
"""

from __future__ import annotations

from memcheck.autograd.kernels import Copied, batched, softmax
from memcheck.autograd.operator import (
    GRAD_UNCHANGED,
    cast,
    cat,
    dropout,
    mul,
    operator,
    scale,
    scale_in_place,
    shift,
    unary,
)
from memcheck.autograd.tensor import Tape, Value
from memcheck.record import Record


class EagerSteps(Record):
    """What a family's ``eager_attention_forward`` computes between the product of q and k and the product with v."""

    mask_dtype: str
    """Dtype of the mask or bias: that of the residual stream. fp32 makes bf16 scores fp32 under autocast."""
    before_softmax: tuple[str, ...] = ("scale", "add")
    """Steps on the scores, in order: ``scale`` (by a number), ``add`` (a mask or bias), ``cap`` (tanh between two
    scalings), ``fill`` (masked_fill)."""
    fp32_scores: bool = False
    """q and k are cast to fp32 before their product (GPT-J)."""
    fp32_softmax: bool = True
    """The softmax is computed in fp32."""
    casts_probabilities: bool = True
    """Probabilities are cast back to the dtype of q, before the dropout."""
    dropout: float = 0.0
    """Probability of dropout."""
    names_every_step: bool = False
    """Variables also hold the scores before each step (BLOOM)."""


def eager(
    tape: Tape,
    q: Value,
    k: Value,
    v: Value,
    steps: EagerSteps,
    *,
    copied: Copied = (False, False, False),
    returned: list[Value] | None = None,
    named: list[Value] | None = None,
) -> Value:
    """Compute transformers' eager_attention_forward on already repeated k and v: scores, softmax, weighted values.

    ``copied``: which of q, k and v the products copy. Lists receive what variables of the caller hold: ``returned`` the
    probabilities that the product with v reads; ``named`` the masked scores, where those have a variable of their own
    (BLOOM, MPT).
    """
    batch, heads, queries, _ = q.shape
    shape = (batch, heads, queries, k.shape[2])
    # under autocast rotated queries are fp32, and so are the probabilities
    probabilities_dtype = v.dtype if steps.fp32_scores else q.dtype
    if steps.fp32_scores:
        q, k = cast(tape, q, "fp32"), cast(tape, k, "fp32")
    scores = batched(tape, q, k, shape, "attention scores", copied[:2])
    for step in steps.before_softmax:
        if named is not None and steps.names_every_step:
            named.append(scores)
        scores = _score_step(tape, scores, step, steps.mask_dtype)
    if named is not None:
        named.append(scores)
    # autocast puts softmax on its fp32 list
    wide = softmax(tape, scores, "fp32" if steps.fp32_softmax or tape.autocast else None)
    if steps.fp32_scores or not steps.fp32_softmax:
        scores = wide  # the softmax is assigned to the variable of the scores, which are freed
    probabilities = wide
    if steps.casts_probabilities:
        probabilities = cast(tape, wide, probabilities_dtype, "attention probabilities")
    del scores, wide
    probabilities = dropout(tape, probabilities, steps.dropout)
    if returned is not None:
        returned.append(probabilities)
    return batched(tape, probabilities, v, (batch, heads, queries, v.shape[-1]), "attention output", (False, copied[2]))


def eager_with_names(
    tape: Tape,
    q: Value,
    k: Value,
    v: Value,
    mask_dtype: str,
    *,
    alibi: bool = False,
    p_dropout: float = 0.0,
    copied: Copied = (False, False, False),
) -> tuple[Value, Value, list[Value]]:
    """Compute Falcon's eager attention; return output, probabilities, and the scores that variables hold to its end.

    ``mask_dtype``: of the mask or bias. ``copied``: which of q, k and v the products copy. Source: modeling_falcon.py,
    FalconAttention.forward. Scores are scaled in place, and the softmax's result takes over their
    name; with ALiBi, which is added in fp32, every step has a name of its own. The softmax's dtype is that of the
    layer's norm, which autocast leaves in fp32.
    """
    batch, heads, queries, _ = q.shape
    scores = batched(tape, q, k, (batch, heads, queries, k.shape[2]), "attention scores", copied[:2])
    named = []
    if alibi:
        wide = cast(tape, scores, "fp32")
        logits = scale_in_place(tape, shift(tape, wide, "alibi", mask_dtype), "attention scaling")
        named = [scores, wide, logits]
        dtype = "fp32" if tape.autocast else v.dtype
        scores = logits
        del wide, logits
    else:
        scores = scale_in_place(tape, scores, "attention scaling")
        dtype = "fp32" if tape.autocast else q.dtype
    masked = shift(tape, scores, "attention mask", mask_dtype)
    probabilities = softmax(tape, masked, dtype)
    del masked, scores
    probabilities = dropout(tape, probabilities, p_dropout)
    out = batched(tape, probabilities, v, (batch, heads, queries, v.shape[-1]), "attention output", (False, copied[2]))
    return out, probabilities, named


def _score_step(tape: Tape, scores: Value, step: str, mask_dtype: str) -> Value:
    """Apply one step of :class:`EagerSteps` to the scores before their softmax."""
    if step == "add":
        return shift(tape, scores, "attention mask", mask_dtype)
    if step == "cap":
        capped = scale(tape, scores, "softcap")
        capped = unary(tape, capped, "tanh")
        return scale(tape, capped, "softcap")
    return scale(tape, scores, "attention scaling" if step == "scale" else "masked_fill")


def eager_with_sinks(  # noqa: PLR0913 - the switches of one formula
    tape: Tape,
    q: Value,
    k: Value,
    v: Value,
    sinks: Value | None,
    returned: list[Value],
    *,
    mask_dtype: str | None = None,
    p_dropout: float = 0.0,
    copied: Copied = (False, False, False),
) -> Value:
    """Compute GPT-OSS's eager attention: a softmax over scores and sink logits, whose sink column is dropped.

    ``sinks``: [heads]; its gradient is a sum over batch and tokens; None: none (MiMo V2's full layers). ``returned``
    takes the probabilities, of which the returned weights are a view. ``copied``: which of q, k, v products copy. fp32
    sinks, or an fp32 mask, make logits and probabilities fp32, which are cast back: autocast lets ``cat`` take the
    widest dtype of its inputs.
    """
    batch, heads, queries, _ = q.shape
    keys = k.shape[2]
    scores = batched(tape, q, k, (batch, heads, queries, keys), "attention scores", copied[:2])
    scores = scale(tape, scores, "attention scaling")
    scores = shift(tape, scores, "attention mask", mask_dtype)
    if sinks is None:
        probs = softmax(tape, _subtract_max(tape, scores))
        probs = cast(tape, probs, v.dtype)
        del scores
        returned.append(probs)
        return batched(tape, probs, v, (batch, heads, queries, v.shape[-1]), "attention output")
    shape = (batch, heads, queries, keys + 1)
    parts = (scores, _spread(tape, sinks, (batch, heads, queries, 1)))
    combined = cat(tape, parts, shape, "cat sinks")
    del parts
    combined = _subtract_max(tape, combined)
    probs = softmax(tape, combined)
    dropped = Value(probs.storage, (batch, heads, queries, keys), probs.dtype)  # a view of all columns
    dropped = operator(tape, dropped, probs, (shape, probs.dtype, "slice backward"))
    del probs
    dropped = cast(tape, dropout(tape, dropped, p_dropout), v.dtype)
    returned.append(dropped)
    del scores  # `combined` lives to the end, as upstream's `combined_logits` does
    return batched(tape, dropped, v, (batch, heads, queries, v.shape[-1]), "attention output", (False, copied[2]))


def eager_scaled_by_sinks(
    tape: Tape, q: Value, k: Value, v: Value, sinks: Value, returned: list[Value], *, mask_dtype: str, p_dropout: float
) -> Value:
    """Compute the eager attention of Granite's windowed models, scaled by ``sigmoid(logsumexp(scores) - sink)``.

    ``sinks``: [heads]. ``returned`` takes the probabilities. Source: modeling_granite_swa.py, eager_attention_forward.
    logsumexp keeps its input and result, and its backward makes ``exp(scores - result)`` (FunctionsManual.cpp,
    logsumexp_backward).
    """
    batch, heads, queries, _ = q.shape
    shape, rows = (batch, heads, queries, queries), (batch, heads, queries)
    scores = batched(tape, q, k, shape, "attention scores")
    scores = shift(tape, scale(tape, scores, "attention scaling"), "attention mask", mask_dtype)
    wide = cast(tape, scores, "fp32") if tape.autocast else scores  # on autocast's fp32 list
    logsumexp, dtype = tape.value(rows, wide.dtype, "logsumexp"), wide.dtype
    kept = wide.storage, logsumexp.storage
    temporaries = [(shape, dtype, "logsumexp backward")] * 2
    logsumexp = operator(tape, logsumexp, wide, "logsumexp backward", saves=kept, temporaries=temporaries)
    del wide
    gate = unary(tape, cast(tape, subtract_broadcast(tape, logsumexp, sinks), "fp32"), "sigmoid")
    del logsumexp
    probabilities = softmax(tape, scores, "fp32")
    del scores
    narrow = cast(tape, probabilities, q.dtype, "attention probabilities")
    del probabilities
    narrow = dropout(tape, narrow, p_dropout)
    returned.append(narrow)
    out = batched(tape, narrow, v, (batch, heads, queries, v.shape[-1]), "attention output")
    return mul(tape, out, cast(tape, gate, out.dtype).view(batch, heads, queries, 1))


def subtract_broadcast(tape: Tape, x: Value, vector: Value) -> Value:
    """Compute ``x - vector`` of one number a head: keeps nothing; the vector's gradient is a negated copy, summed."""
    out = tape.value(x.shape, x.dtype, "sub")
    return operator(tape, out, (x, vector), [GRAD_UNCHANGED, "sum"], temporaries=[(x.shape, x.dtype, "neg")])


def with_sinks(tape: Tape, out: Value, sinks: Value) -> Value:
    """The output of a kernel that takes the sinks together with queries, keys and values: their gradient too."""
    return operator(tape, Value(out.storage, out.shape, out.dtype), (out, sinks), [GRAD_UNCHANGED, "sinks dW"])


def _spread(tape: Tape, x: Value, shape: tuple[int, ...]) -> Value:
    """``reshape(1, -1, 1, 1).expand(...)``: a view."""
    return operator(tape, Value(x.storage, shape, x.dtype), x, "sum")


def _subtract_max(tape: Tape, x: Value) -> Value:
    """Compute ``x - x.max(-1, keepdim=True).values``, which saves the int64 indices of the maximum.

    Backward scatters the maximum's gradient into zeros of the size of ``x``: in place, unless gradients are DTensors.
    """
    shape, dtype = x.shape, x.dtype
    rows = (*shape[:-1], 1)
    largest = tape.value(rows, dtype, "max")
    indices = tape.new(rows, "int64", "max indices")
    zeros = [(shape, dtype, "max backward")] if tape.dtensor_gradients else []
    largest = operator(tape, largest, x, "max backward", saves=(indices,), temporaries=zeros)
    out = tape.value(shape, dtype, "subtract max")
    return operator(
        tape, out, (x, largest), [GRAD_UNCHANGED, (rows, dtype, "sum")], temporaries=[(shape, dtype, "neg")]
    )
