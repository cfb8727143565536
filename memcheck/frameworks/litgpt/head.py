"""LitGPT's head and loss: logits in pieces of 128 tokens, each returned in fp32, and a cross entropy over each.

Sources: litgpt finetune/lora.py (``lm_head_chunk_size=128``), finetune/full.py, utils.py (chunked_cross_entropy) at
26857050; Fabric's ``convert_output`` turns what the model returns to fp32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcheck.autograd.context import Context
from memcheck.autograd.kernels import Weights
from memcheck.autograd.loss import Pieces, counted_as, cross_entropy, in_pieces
from memcheck.autograd.operator import cast, cat, copy, operator
from memcheck.autograd.tensor import Value
from memcheck.frameworks.litgpt.layers import adapted_linear, capped

if TYPE_CHECKING:
    from memcheck.frameworks.transformers.head import Head

PIECE = 128
"""Tokens of each sequence whose logits are made at once, and over which one cross entropy runs."""


def litgpt_loss(ctx: Context, hidden: Value, weights: Weights, head: Head) -> Value:
    """Compute logits and loss of LitGPT in chunks of 128 tokens. ``hidden``: the normed states, [tokens, hidden].

    The last step's logits, and its graph if the script keeps it, live until this step's logits replace them.
    """
    tape = ctx.tape
    sizes = [Pieces(size * ctx.batch, copies) for size, copies in in_pieces(ctx.sequence, PIECE)]
    last_step = []
    for size, copies in sizes:
        with counted_as(tape, copies):
            last_step.append(tape.new((size, head.vocab), "fp32", "logits of the step before"))
    if head.graph_before:
        last_step.append(tape.new((head.graph_before,), "int8", "inputs in the graph of the step before"))
    compute_logits = _chunked_logits if ctx.setting.adapter is not None else _whole_logits
    chunk_logits = compute_logits(ctx, hidden, weights, head, sizes)
    del hidden
    last_step.clear()
    losses = []
    for _, copies in sizes:
        with counted_as(tape, copies):
            losses.append(cross_entropy(tape, chunk_logits.pop(0), upcast=True))
    return cat(tape, tuple(losses), (1,), "sum of losses")


def _chunked_logits(ctx: Context, hidden: Value, weights: Weights, head: Head, sizes: list[Pieces]) -> list[Value]:
    """Compute chunked logits as finetune/lora.py does: the head runs on slices of the hidden states."""
    tape = ctx.tape
    chunk_inputs = tape.views(hidden, *((size, ctx.hidden) for size, _ in sizes))
    model_logits, logits = [], []
    for chunk_input, (_, copies) in zip(chunk_inputs, sizes, strict=True):
        with counted_as(tape, copies):
            model_logits.append(_logits(ctx, chunk_input, weights, head))
    for chunk, (_, copies) in zip(model_logits, sizes, strict=True):
        with counted_as(tape, copies):
            logits.append(cast(tape, chunk, "fp32", "convert_output"))
    ctx.model_outputs.extend(logits)
    return logits


def _whole_logits(ctx: Context, hidden: Value, weights: Weights, head: Head, sizes: list[Pieces]) -> list[Value]:
    """Compute all logits at once, [tokens, vocab], and view them in chunks, as finetune/full.py and pretrain.py do.

    finetune/full.py cuts off the last position, which copies the logits if there are several sequences. pretrain.py has
    a target for each position.
    """
    tape = ctx.tape
    logits = cast(tape, _logits(ctx, hidden, weights, head), "fp32", "convert_output")
    ctx.model_outputs.append(logits)
    shape, dtype = logits.shape, logits.dtype
    if ctx.setting.option("script") == "pretrain":
        return tape.views(logits, *((size, shape[-1]) for size, _ in sizes))
    cut = Value(logits.storage, shape, dtype)
    cut = operator(tape, cut, logits, "slice backward")
    if ctx.batch > 1:
        cut = copy(tape, cut, "reshape of the slice")
    return tape.views(cut, *((size, shape[-1]) for size, _ in sizes))


def _logits(ctx: Context, hidden: Value, weights: Weights, head: Head) -> Value:
    """Compute ``lm_head`` with its LoRA adapter, and cap the logits if the model caps them: [tokens, vocab]."""
    logits = adapted_linear(ctx, hidden, weights, "lm_head")
    if not head.softcap:
        return logits

    return capped(ctx.tape, logits)
