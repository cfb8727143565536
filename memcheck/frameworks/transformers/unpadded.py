"""FlashAttention over padded rows: the real tokens are packed for the kernel, and put back after it.

Source: transformers 5.23 modeling_flash_attention_utils.py (``_flash_attention_forward``, ``_upad_input``,
``_pad_input``). Every row is as long as the longest, so that nothing of what is copied is less than the rows.
"""

from __future__ import annotations

from memcheck.autograd.attention import flash
from memcheck.autograd.context import Context
from memcheck.autograd.indexing import index
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Value


def flash_of_real_tokens(ctx: Context, q: Value, k: Value, v: Value) -> Value:
    """Run FlashAttention on the tokens that are not padding. It keeps unpadded copies of q, k and v.

    ``q``, ``k``, ``v``: [batch, heads, sequence, head_dim]. The projection reads a padded copy of the output.
    """
    tape = ctx.tape
    real_tokens = tape.new((q.shape[0] * q.shape[2],), "int64", "real tokens")
    k, v, q = (index(tape, x, real_tokens, x.shape, "unpadded") for x in (k, v, q))
    out = flash(tape, q, k, v, v.shape[-1])
    return operator(
        tape, tape.value(out.shape, out.dtype, "padded attention"), out, "padded backward", saves=(real_tokens,)
    )
