"""Ranks that share a sequence exchange parts of it for heads around attention, as DeepSpeed's Ulysses does.

Source: DeepSpeed 0.19.8 ``runtime/sequence_parallel/ulysses_sp.py`` (UlyssesSPAttentionHF: forward,
_combine_local_sequences, _partition_global_sequence), ``sequence/layer.py`` (_dim_zero_all_to_all).
"""

from __future__ import annotations

from collections.abc import Callable

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import copy
from memcheck.autograd.indexing import repeat_kv
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Value
from memcheck.models.attention_types import WhisperAttention
from memcheck.models.types import Attention

Attend = Callable[[Context, Attention, Value, Value, Value], Value]


def attend_to_heads(ctx: Context, a: Attention, q: Value, k: Value, v: Value, attend: Attend) -> Value:
    """Attention of a part of the heads over all tokens, by ``attend``; the output is a copy, of this rank's tokens.

    Fewer key heads than ranks are repeated. SDPA writes its output head by head, as its queries lie, and transposes
    it into a copy; FlashAttention's package does not. A mask is left out.
    """
    tape, setting = ctx.tape, ctx.setting
    ways = setting.context
    given = q, k, v  # arguments, to the end
    sent = [_exchanged(ctx, t, ways) for t in (q, k, v)]
    heads = [_parts(t, ways) for t in sent]
    q, k, v = (copy(tape, t, "bs hc_l sl hs") for t in heads)
    del sent, heads
    ctx.setting = setting._replace(context=1, exchanges_heads=False, sequence=setting.sequence * ways)
    out = attend(ctx, a, q, k, v)
    del q, k, v
    ctx.setting = setting
    if setting.attention == "sdpa" and not isinstance(a, WhisperAttention):
        out = copy(tape, out, "transpose(1, 2).contiguous()")
    shape = (out.shape[0], out.shape[1] * ways, setting.sequence, out.shape[3])
    back = _exchanged(ctx, out.view(*shape), ways)
    del out
    back = copy(tape, back, "sl_l bs em")
    del given
    return back


def _exchanged(ctx: Context, x: Value, ways: int) -> Value:
    """Packed rank by rank, and what all ranks send; backward the same."""
    tape = ctx.tape
    if x.shape[1] < ways:
        x = repeat_kv(tape, x, ways, copies=True)
    shape, dtype = x.shape, x.dtype
    packed = tape.new(shape, dtype, "Ulysses contiguous")
    out = tape.value(shape, dtype, "Ulysses all-to-all")
    del packed
    return operator(
        tape, out, x, "Ulysses all-to-all backward", temporaries=[(shape, dtype, "Ulysses contiguous backward")]
    )


def _parts(x: Value, ways: int) -> Value:
    """A tensor of part of the tokens as one of part of the heads, of the same bytes."""
    return x.view(x.shape[0], x.shape[1] // ways, x.shape[2] * ways, x.shape[3])
