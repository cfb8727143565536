"""nanotron's decoder layers: Llama's, and Qwen 2's, which SmolLM3 runs on.

Sources: nanotron ``models/llama.py`` (CausalSelfAttention._forward_training, MLP, LlamaDecoderLayer),
``models/qwen.py`` (Qwen2Attention._forward_packed, Qwen2MLP, Qwen2DecoderLayer); flash-attn
``flash_attn_interface.py``, ``csrc/flash_attn/flash_api.cpp`` (mha_varlen_bwd), ``layers/rotary.py``.

Queries and keys are rotated where they lie. Qwen 2's ``input_layernorm`` is assigned twice, the second time the one in
pieces, whatever ``_fused_rms_norm`` says.
"""

from __future__ import annotations

from functools import partial

from memcheck.autograd.context import Context, Setting
from memcheck.autograd.elementwise import add, cat, copy, mul, unary
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Value
from memcheck.errors import UnsupportedError
from memcheck.frameworks.megatron.recompute import checkpoint
from memcheck.frameworks.nanotron.linear import column, norm, norm_in_pieces, row
from memcheck.models.types import Attention, Block, Mlp

PADDED_ROWS = 128
"""Rows that flash-attn's backward adds to each sequence."""


def is_qwen(setting: Setting) -> bool:
    """Whether the model is ``Qwen2ForTraining``, else ``LlamaForTraining``."""
    return setting.option("model_class", "llama") == "qwen2"


def nanotron_layers(ctx: Context, blocks: tuple[Block, ...], x: Value, *, recompute: bool) -> Value:
    """Consecutive layers; ``recompute_layer``: a reentrant checkpoint around each."""
    for block in blocks:
        x = checkpoint(ctx, partial(_again, block), (x,)) if recompute else _block(ctx, block, x)
    return x


def _again(block: Block, ctx: Context, inputs: tuple[Value, ...]) -> Value:
    return _block(ctx, block, inputs[0])


def _block(ctx: Context, block: Block, x: Value) -> Value:
    """``_core_forward``. What attention returned is in a variable, ``output``, to the end."""
    a, m = block.mixer, block.mlp
    if not isinstance(a, Attention) or not isinstance(m, Mlp):
        raise UnsupportedError("only attention and dense feed-forward layers of nanotron have a memory model")
    first = norm_in_pieces if is_qwen(ctx.setting) else norm
    h = first(ctx, block.input_norm, x, "input_layernorm")
    output = _packed_attention(ctx, a, h) if is_qwen(ctx.setting) else _attention(ctx, a, h)
    h = add(ctx.tape, output, x, "residual")
    del x
    fed = _mlp(ctx, m, norm(ctx, block.mlp_norm, h, "post_attention_layernorm"))
    out = add(ctx.tape, fed, h, "residual")
    del output
    return out


def _widths(ctx: Context, a: Attention) -> tuple[int, int]:
    """Columns of this rank's queries, and of its keys."""
    return a.heads // ctx.tp * a.head_dim, a.kv_heads // ctx.tp * a.head_dim


def _attention(ctx: Context, a: Attention, x: Value) -> Value:
    """Llama's: queries, keys and values copied apart, keys and values copied together, and once more interleaved.

    The caller's variables hold the first copies until the layer's output is there.
    """
    if a.qkv_bias:
        pointer = "/training/options/model_class"
        raise UnsupportedError("nanotron's Llama has no biases", "write `model_class: qwen2`", pointer)
    tape, (wide, narrow) = ctx.tape, _widths(ctx, a)
    rows = ctx.tokens
    qkv = column(ctx, x, "qkv_proj", wide + 2 * narrow)
    if a.kv_heads != a.heads:
        views = tape.views(qkv, (rows, wide), (rows, narrow), (rows, narrow))
        q, k, v = (copy(tape, each, "contiguous") for each in views)
        del views
    else:
        q, k, v = tape.views(copy(tape, qkv, "permute"), (rows, wide), (rows, narrow), (rows, narrow))
    both = cat(tape, (k, v), (rows, 2 * narrow), "cat keys and values")
    kv = copy(tape, both, "permute keys and values")
    del both
    keys, values = tape.views(kv, (rows, narrow), (rows, narrow))
    out = _flash(ctx, a, q, keys, values)
    del keys, values, kv
    result = row(ctx, out, "o_proj", ctx.hidden, strided=ctx.setting.batch > 1)
    del out, q, k, v, qkv, x
    return result


def _packed_attention(ctx: Context, a: Attention, x: Value) -> Value:
    """Qwen 2's: queries, and keys with values, are slices of one tensor, whose gradients are padded to its size."""
    wide, narrow = _widths(ctx, a)
    rows = ctx.tokens
    qkv = column(ctx, x, "qkv_proj", wide + 2 * narrow, bias=a.qkv_bias)
    q = _slice(ctx, qkv, (rows, wide))
    kv = _slice(ctx, qkv, (rows, 2 * narrow))
    out = _flash(ctx, a, q, kv, None)
    result = row(ctx, out, "o_proj", ctx.hidden)
    del out, q, kv, qkv, x
    return result


def _slice(ctx: Context, x: Value, shape: tuple[int, ...]) -> Value:
    """``x[..., :n]``: a view, whose backward makes zeros of the whole."""
    tape = ctx.tape
    return operator(tape, Value(x.storage, shape, x.dtype), x, "slice backward")


def _flash(ctx: Context, a: Attention, q: Value, k: Value, v: Value | None) -> Value:
    """flash-attn 2 on rows of all sequences; without ``v``, ``k`` has both.

    Its backward takes fp32 sums of the queries' gradients, a figure per row and head, and keys' and values' gradients
    for every query head where several share one.
    """
    tape, heads, dim = ctx.tape, a.heads // ctx.tp, a.head_dim
    rows, padded = ctx.tokens, ctx.tokens + PADDED_ROWS * ctx.setting.batch
    out = Value(tape.output("attention", q.shape, q.dtype, "flash attention"), q.shape, q.dtype)
    lse = tape.new((rows, heads), "fp32", "flash attention logsumexp")
    inputs = (q, k) if v is None else (q, k, v)
    multiple = 32 if dim <= 128 else 64  # as flash_api.cpp has it
    width = -(-dim // multiple) * multiple
    taken = [((padded, heads), "fp32", "softmax_d"), ((padded, heads * width), "fp32", "dq_accum")]
    if a.kv_heads != a.heads:
        taken += [((rows, heads * dim), q.dtype, "dk, dv of every query head")] * 2
    return operator(tape, out, inputs, "flash attention backward", saves=(*inputs, out, lse), later=taken)


def _mlp(ctx: Context, m: Mlp, x: Value) -> Value:
    """``down_proj(silu(gate) * up)``; gate and up are one product, which has a name to the end."""
    tape, width = ctx.tape, m.width // ctx.tp
    if not m.gated:
        raise UnsupportedError("nanotron's feed-forward layers are gated")
    merged = column(ctx, x, "gate_up_proj", 2 * width)
    gate, up = tape.views(merged, (ctx.tokens, width), (ctx.tokens, width))
    product = mul(tape, unary(tape, gate, "silu" if m.activation == "swish" else m.activation), up, "glu")
    del gate, up
    out = row(ctx, product, "down_proj", ctx.hidden)
    del product, merged, x
    return out
