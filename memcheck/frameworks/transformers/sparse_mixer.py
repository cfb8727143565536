"""Phi 3.5's router, which draws two experts a token.

Source: transformers 5.24 modeling_phimoe.py (sparsemixer, PhimoeMultiplier).
"""

from __future__ import annotations

from memcheck.autograd.kernels import softmax
from memcheck.autograd.operator import cat, operator
from memcheck.autograd.tensor import Storage, Tape, Value

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
