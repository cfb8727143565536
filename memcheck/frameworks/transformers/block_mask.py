"""Attention of MiniMax M3's sparse layers: an indexer chooses blocks of keys, of which each layer makes a mask.

Source: transformers 5.23 models/minimax_m3_vl/modeling_minimax_m3_vl.py.
"""

from __future__ import annotations

from memcheck.autograd import kernels
from memcheck.autograd.context import Context
from memcheck.autograd.kernels import MASK_ALIGNMENT
from memcheck.autograd.operator import add, cast, copy, dropout, operator, repeat_kv, scale
from memcheck.autograd.tensor import Tape, Value, round_up
from memcheck.frameworks.transformers.kernel_choice import copied_operands, kernel_of
from memcheck.models.module_types import BlockIndexer
from memcheck.models.types import Attention


def attend_to_blocks(ctx: Context, attention: Attention, indexer: BlockIndexer, q: Value, k: Value, v: Value) -> Value:
    """Run attention of MiniMax M3's sparse layers: an indexer chooses blocks of keys, and all others are masked.

    ``q``, ``k``, ``v``: [batch, heads, sequence, head_dim]. The additive mask is [batch, heads, sequence, sequence]. No
    gradient reaches the indexer, so that its tensors are freed when it returns.
    """
    tape, heads, sequence = ctx.tape, q.shape[1], ctx.sequence
    for tensor in (t for t in attention.tensors if t.fixed):
        ctx.constant(tensor)
    dtype = q.dtype
    # the indexer scores every key for each of its heads
    queries = tape.new((ctx.batch, sequence, indexer.heads * indexer.head_dim), "fp32", "index queries in fp32")
    scores = tape.new((ctx.batch, indexer.heads, sequence, sequence), "fp32", "index scores")
    masked = tape.new((ctx.batch, indexer.heads, sequence, sequence), "fp32", "masked index scores")
    del queries, scores, masked
    # the chosen blocks become an additive mask with a value for every pair of tokens and every head
    shape = (ctx.batch, heads, sequence, sequence)
    chosen_blocks = tape.new((ctx.batch, indexer.heads, sequence, sequence), "bool", "chosen keys")
    chosen_keys, kept_keys = tape.new(shape, "bool", "chosen keys of every head"), tape.new(shape, "bool", "kept keys")
    masked_keys = tape.new(shape, "bool", "masked keys")
    zeros = tape.new(shape, dtype, "zeros")
    mask = Value(tape.new(shape, dtype, "mask of every head"), shape, dtype)
    del chosen_blocks, chosen_keys, kept_keys, masked_keys, zeros
    if k.shape[1] != heads:
        k, v = repeat_kv(tape, k, heads), repeat_kv(tape, v, heads)
    if kernel_of(ctx, attention) == "eager":
        return _eager(ctx, attention, (q, k, v), mask)
    return _efficient(ctx, (q, k, v), mask)


def _efficient(ctx: Context, heads: tuple[Value, Value, Value], mask: Value) -> Value:
    """Run the memory-efficient kernel with a bias that takes a gradient. It keeps q, k, v, the bias, output and
    logsumexp.
    """
    tape = ctx.tape
    q, k, v, bias = ((cast(tape, t, tape.autocast) if tape.autocast else t) for t in (*heads, mask))
    if ctx.sequence % MASK_ALIGNMENT:  # pad_bias
        bias = _padded(tape, bias, round_up(ctx.sequence, MASK_ALIGNMENT))
    out = Value(tape.output("attention", q.shape, q.dtype, "efficient attention"), q.shape, q.dtype)
    lse = tape.output("attention", q.shape[:-1], "fp32", "efficient attention logsumexp")
    return operator(tape, out, (q, k, v, bias), "efficient attention backward", saves=(q, k, v, bias, out, lse))


def _padded(tape: Tape, x: Value, wide: int) -> Value:
    """Pad the rows of a bias to ``wide`` elements; the kernel gets a slice of the padded tensor."""
    shape, dtype = (*x.shape[:-1], wide), x.dtype
    return operator(tape, tape.value(shape, dtype, "pad_bias"), x, "pad backward")


def _eager(ctx: Context, attention: Attention, heads: tuple[Value, Value, Value], mask: Value) -> Value:
    """Replay eager_attention_forward on ``heads``: q, k and v, [batch, heads, sequence, head_dim].

    ``mask``: added to the scores; it gets a gradient. Returns the attention output in the shape of q.
    """
    tape = ctx.tape
    q, k, v = heads
    batch, num_heads, sequence, head_dim = q.shape
    copied = copied_operands(ctx, attention, num_heads)
    scores = scale(
        tape, kernels.batched(tape, q, k, (batch, num_heads, sequence, sequence), "attention scores", copied[:2])
    )
    scores = add(tape, scores, mask, "attention mask")
    probabilities = kernels.softmax(tape, scores, "fp32")
    cast_probabilities = cast(tape, probabilities, q.dtype, "attention probabilities")
    del scores, probabilities
    cast_probabilities = dropout(tape, cast_probabilities, attention.dropout)
    ctx.unused_outputs.append(cast_probabilities)
    out = kernels.batched(
        tape, cast_probabilities, v, (batch, num_heads, sequence, head_dim), "attention output", (False, copied[2])
    )
    return copy(tape, out, "contiguous")
