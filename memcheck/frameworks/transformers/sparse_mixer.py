"""Phi 3.5's router, which draws two experts a token.

Source: transformers 5.24 modeling_phimoe.py (sparsemixer, PhimoeMultiplier).
"""

from __future__ import annotations

from memcheck.autograd.attention import softmax
from memcheck.autograd.elementwise import cat
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Storage, Tape, Value

DRAWS = 2
"""``sparsemixer`` draws a first expert and, with that one masked, a second."""


def sparse_mixer(tape: Tape, logits: Value) -> tuple[Value, Storage]:
    """Scores and indices of the drawn experts. Autocast's softmax makes the scores fp32."""
    scores = tuple(_drawn(tape, logits) for _ in range(DRAWS))
    shape = (*logits.shape[:-1], DRAWS)
    chosen = cat(tape, scores, shape, "multipliers")
    return chosen, tape.new(shape, "int64", "selected experts")


def _drawn(tape: Tape, logits: Value) -> Value:
    """One draw: a mask of what is too low, a softmax of the rest, and its value where the draw fell.

    The mask and the softmax are kept, though the custom function hands them no gradient: their nodes are its inputs'.
    """
    one = (*logits.shape[:-1], 1)
    mask = tape.new(logits.shape, "bool", "mask of low scores")
    masked = Value(tape.new(logits.shape, logits.dtype, "masked gates"), logits.shape, logits.dtype)
    drawn = tape.new(one, "int64", "selected expert")
    gates = softmax(tape, masked, "fp32" if tape.autocast else None)
    del masked
    value = tape.new(one, gates.dtype, "gathered gate")
    return operator(
        tape,
        tape.value(one, gates.dtype, "multiplier"),
        logits,
        (gates.shape, gates.dtype, "gradient of scores"),
        saves=(mask, drawn, gates, value),
    )
