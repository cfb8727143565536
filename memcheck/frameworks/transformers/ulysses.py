"""Ranks that share a sequence exchange parts of it for heads around attention, as DeepSpeed's Ulysses does.

Source: DeepSpeed 0.19.8 ``runtime/sequence_parallel/ulysses_sp.py`` (UlyssesSPAttentionHF: forward,
_combine_local_sequences, _partition_global_sequence), ``sequence/layer.py`` (_dim_zero_all_to_all).
"""

from __future__ import annotations

from collections.abc import Callable

from memcheck.autograd.context import Context
from memcheck.autograd.operator import copy, operator, repeat_kv
from memcheck.autograd.tensor import Value
from memcheck.models.module_types import WhisperAttention
from memcheck.models.types import Attention

Attend = Callable[[Context, Attention, Value, Value, Value], Value]


def attend_to_heads(ctx: Context, attention: Attention, q: Value, k: Value, v: Value, attend: Attend) -> Value:
    """Run attention of a part of the heads over all tokens, and return a copy of the output for this rank's tokens.

    ``q``, ``k``, ``v``: [batch, heads, local sequence, head_dim]. All-to-alls exchange tokens for heads and back. Fewer
    key heads than ranks are repeated. SDPA's output needs a copy for its transpose, FlashAttention's does not. A mask
    is left out.
    """
    tape, setting = ctx.tape, ctx.setting
    ranks = setting.context_parallel
    arguments = q, k, v  # arguments, to the end
    exchanged = [_all_to_all(ctx, t, ranks) for t in (q, k, v)]
    heads = [_split_heads(t, ranks) for t in exchanged]
    q, k, v = (copy(tape, t, "bs hc_l sl hs") for t in heads)
    del exchanged, heads
    ctx.setting = setting._replace(context_parallel=1, ulysses=False, sequence=setting.sequence * ranks)
    out = attend(ctx, attention, q, k, v)
    del q, k, v
    ctx.setting = setting
    if setting.attention == "sdpa" and not isinstance(attention, WhisperAttention):
        out = copy(tape, out, "transpose(1, 2).contiguous()")
    shape = (out.shape[0], out.shape[1] * ranks, setting.sequence, out.shape[3])
    returned = _all_to_all(ctx, out.view(*shape), ranks)
    del out
    returned = copy(tape, returned, "sl_l bs em")
    del arguments
    return returned


def _all_to_all(ctx: Context, x: Value, ranks: int) -> Value:
    """Pack a tensor by destination rank, and exchange it with an all-to-all; the backward does the same with the
    gradient.
    """
    tape = ctx.tape
    if x.shape[1] < ranks:
        x = repeat_kv(tape, x, ranks, copies=True)
    shape, dtype = x.shape, x.dtype
    packed = tape.new(shape, dtype, "Ulysses contiguous")
    out = tape.value(shape, dtype, "Ulysses all-to-all")
    del packed
    return operator(
        tape, out, x, "Ulysses all-to-all backward", temporaries=[(shape, dtype, "Ulysses contiguous backward")]
    )


def _split_heads(x: Value, ways: int) -> Value:
    """View part of the tokens with all heads as all tokens with part of the heads; the bytes are the same."""
    return x.view(x.shape[0], x.shape[1] // ways, x.shape[2] * ways, x.shape[3])
