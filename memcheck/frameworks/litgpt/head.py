"""LitGPT's head and loss: logits in pieces of 128 tokens, each returned in fp32, and a cross entropy over each.

Sources: litgpt finetune/lora.py (``lm_head_chunk_size=128``), finetune/full.py, utils.py (chunked_cross_entropy) at
26857050; Fabric's ``convert_output`` turns what the model returns to fp32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import cast, cat, copy
from memcheck.autograd.loss import cross_entropy
from memcheck.autograd.matrix import Weights
from memcheck.autograd.operator import operator
from memcheck.autograd.pieces import Pieces, counted_as, in_pieces
from memcheck.autograd.tensor import Value
from memcheck.frameworks.litgpt.layers import adapted_linear

if TYPE_CHECKING:
    from memcheck.frameworks.transformers.head import Head

PIECE = 128
"""Tokens of each sequence whose logits are made at once, and over which one cross entropy runs."""


def litgpt_loss(ctx: Context, h: Value, weights: Weights, head: Head) -> Value:
    """Logits and loss. The logits stay referenced until the next step's replace them."""
    tape = ctx.tape
    sizes = [Pieces(size * ctx.batch, copies) for size, copies in in_pieces(ctx.sequence, PIECE)]
    before = []
    for size, copies in sizes:
        with counted_as(tape, copies):
            before.append(tape.new((size, head.vocab), "fp32", "logits of the step before"))
    if head.graph_before:
        before.append(tape.new((head.graph_before,), "int8", "inputs in the graph of the step before"))
    making = _adapting if ctx.setting.adapter is not None else _whole
    pieces = making(ctx, h, weights, head, sizes)
    del h
    before.clear()
    losses = []
    for _, copies in sizes:
        with counted_as(tape, copies):
            losses.append(cross_entropy(tape, pieces.pop(0), upcast=True))
    return cat(tape, tuple(losses), (1,), "sum of losses")


def _adapting(ctx: Context, h: Value, weights: Weights, head: Head, sizes: list[Pieces]) -> list[Value]:
    """finetune/lora.py: the head runs on slices of the hidden states."""
    tape = ctx.tape
    parts = tape.views(h, *((size, ctx.hidden) for size, _ in sizes))
    returned, logits = [], []
    for part, (_, copies) in zip(parts, sizes, strict=True):
        with counted_as(tape, copies):
            returned.append(_logits(ctx, part, weights, head))
    for each, (_, copies) in zip(returned, sizes, strict=True):
        with counted_as(tape, copies):
            logits.append(cast(tape, each, "fp32", "convert_output"))
    ctx.kept.extend(logits)
    return logits


def _whole(ctx: Context, h: Value, weights: Weights, head: Head, sizes: list[Pieces]) -> list[Value]:
    """finetune/full.py: the last position is cut off all logits, which copies those of several sequences; pretrain.py
    has a target for each.
    """
    tape = ctx.tape
    logits = cast(tape, _logits(ctx, h, weights, head), "fp32", "convert_output")
    ctx.kept.append(logits)
    shape, dtype = logits.shape, logits.dtype
    if ctx.setting.option("script") == "pretrain":
        return tape.views(logits, *((size, shape[-1]) for size, _ in sizes))
    cut = Value(logits.storage, shape, dtype)
    cut = operator(tape, cut, logits, "slice backward")
    if ctx.batch > 1:
        cut = copy(tape, cut, "reshape of the slice")
    return tape.views(cut, *((size, shape[-1]) for size, _ in sizes))


def _logits(ctx: Context, h: Value, weights: Weights, head: Head) -> Value:
    logits = adapted_linear(ctx, h, weights, "lm_head")
    if not head.softcap:
        return logits
    from memcheck.frameworks.litgpt.capped import capped

    return capped(ctx.tape, logits)
