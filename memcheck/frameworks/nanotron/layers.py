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
from memcheck.autograd.operator import add, cat, copy, mul, operator, unary
from memcheck.autograd.tensor import Value, round_up
from memcheck.errors import UnsupportedError
from memcheck.frameworks.megatron.recompute import checkpoint
from memcheck.frameworks.nanotron.linear import column, norm, row, unfused_norm
from memcheck.models.types import Attention, Block, Mlp

PADDED_ROWS = 128
"""Rows that flash-attn's backward adds to each sequence."""


def is_qwen(setting: Setting) -> bool:
    """Whether the model is ``Qwen2ForTraining``, else ``LlamaForTraining``."""
    return setting.option("model_class", "llama") == "qwen2"


def nanotron_layers(ctx: Context, blocks: tuple[Block, ...], x: Value, *, recompute: bool) -> Value:
    """Compute consecutive layers, ``x``: [tokens, hidden]; so is the result.

    ``recompute``: each layer runs in a reentrant checkpoint (nanotron's ``recompute_layer``).
    """
    for block in blocks:
        x = checkpoint(ctx, partial(_recomputed_block, block), (x,)) if recompute else _block(ctx, block, x)
    return x


def _recomputed_block(block: Block, ctx: Context, inputs: tuple[Value, ...]) -> Value:
    return _block(ctx, block, inputs[0])


def _block(ctx: Context, block: Block, x: Value) -> Value:
    """Compute one decoder layer [tokens, hidden] (``_core_forward``); attention's output stays in a variable to the
    end.
    """
    attention, mlp = block.mixer, block.mlp
    if not isinstance(attention, Attention) or not isinstance(mlp, Mlp):
        raise UnsupportedError("only attention and dense feed-forward layers of nanotron have a memory model")
    input_norm = unfused_norm if is_qwen(ctx.setting) else norm
    hidden = input_norm(ctx, block.input_norm, x, "input_layernorm")
    output = _packed_attention(ctx, attention, hidden) if is_qwen(ctx.setting) else _attention(ctx, attention, hidden)
    hidden = add(ctx.tape, output, x, "residual")
    del x
    mlp_output = _mlp(ctx, mlp, norm(ctx, block.mlp_norm, hidden, "post_attention_layernorm"))
    out = add(ctx.tape, mlp_output, hidden, "residual")
    del output
    return out


def _widths(ctx: Context, attention: Attention) -> tuple[int, int]:
    """Columns of this rank's queries, and of its keys."""
    return attention.heads // ctx.tp * attention.head_dim, attention.kv_heads // ctx.tp * attention.head_dim


def _attention(ctx: Context, attention: Attention, x: Value) -> Value:
    """Compute Llama's attention: q, k and v are copied separately, then k and v are joined and interleaved in copies.

    The caller's variables hold the first copies until the layer's output is computed.
    """
    if attention.qkv_bias:
        pointer = "/training/options/model_class"
        raise UnsupportedError("nanotron's Llama has no biases", "write `model_class: qwen2`", pointer)
    tape, (query_width, kv_width) = ctx.tape, _widths(ctx, attention)
    tokens = ctx.tokens
    qkv = column(ctx, x, "qkv_proj", query_width + 2 * kv_width)
    if attention.kv_heads != attention.heads:
        views = tape.views(qkv, (tokens, query_width), (tokens, kv_width), (tokens, kv_width))
        q, k, v = (copy(tape, view, "contiguous") for view in views)
        del views
    else:
        q, k, v = tape.views(copy(tape, qkv, "permute"), (tokens, query_width), (tokens, kv_width), (tokens, kv_width))
    joined = cat(tape, (k, v), (tokens, 2 * kv_width), "cat keys and values")
    interleaved = copy(tape, joined, "permute keys and values")
    del joined
    keys, values = tape.views(interleaved, (tokens, kv_width), (tokens, kv_width))
    out = _flash(ctx, attention, q, keys, values)
    del keys, values, interleaved
    result = row(ctx, out, "o_proj", ctx.hidden, strided=ctx.setting.batch > 1)
    del out, q, k, v, qkv, x
    return result


def _packed_attention(ctx: Context, attention: Attention, x: Value) -> Value:
    """Compute Qwen 2's attention: q, and k with v, are slices of one tensor; their gradients are padded to its size."""
    query_width, kv_width = _widths(ctx, attention)
    tokens = ctx.tokens
    qkv = column(ctx, x, "qkv_proj", query_width + 2 * kv_width, bias=attention.qkv_bias)
    q = _slice(ctx, qkv, (tokens, query_width))
    kv = _slice(ctx, qkv, (tokens, 2 * kv_width))
    out = _flash(ctx, attention, q, kv, None)
    result = row(ctx, out, "o_proj", ctx.hidden)
    del out, q, kv, qkv, x
    return result


def _slice(ctx: Context, x: Value, shape: tuple[int, ...]) -> Value:
    """Compute ``x[..., :n]``: a view, whose backward makes zeros of the whole."""
    tape = ctx.tape
    return operator(tape, Value(x.storage, shape, x.dtype), x, "slice backward")


def _flash(ctx: Context, attention: Attention, q: Value, k: Value, v: Value | None) -> Value:
    """Run flash-attn 2 on the rows of all sequences: [tokens, heads * head_dim]. Without ``v``, ``k`` holds both.

    Backward allocates fp32 sums of the queries' gradients, one fp32 number per row and head, and dK and dV for every
    query head where several share one.
    """
    tape, heads, dim = ctx.tape, attention.heads // ctx.tp, attention.head_dim
    tokens, padded_tokens = ctx.tokens, ctx.tokens + PADDED_ROWS * ctx.setting.batch
    out = Value(tape.output("attention", q.shape, q.dtype, "flash attention"), q.shape, q.dtype)
    logsumexp = tape.new((tokens, heads), "fp32", "flash attention logsumexp")
    inputs = (q, k) if v is None else (q, k, v)
    head_dim_multiple = 32 if dim <= 128 else 64  # as flash_api.cpp has it
    padded_head_dim = round_up(dim, head_dim_multiple)
    backward_temporaries = [
        ((padded_tokens, heads), "fp32", "softmax_d"),
        ((padded_tokens, heads * padded_head_dim), "fp32", "dq_accum"),
    ]
    if attention.kv_heads != attention.heads:
        backward_temporaries += [((tokens, heads * dim), q.dtype, "dk, dv of every query head")] * 2
    return operator(
        tape, out, inputs, "flash attention backward", saves=(*inputs, out, logsumexp), later=backward_temporaries
    )


def _mlp(ctx: Context, mlp: Mlp, x: Value) -> Value:
    """Compute ``down_proj(silu(gate) * up)``; gate and up are one product, which stays in a variable to the end."""
    tape, width = ctx.tape, mlp.width // ctx.tp
    if not mlp.gated:
        raise UnsupportedError("nanotron's feed-forward layers are gated")
    merged = column(ctx, x, "gate_up_proj", 2 * width)
    gate, up = tape.views(merged, (ctx.tokens, width), (ctx.tokens, width))
    product = mul(tape, unary(tape, gate, "silu" if mlp.activation == "swish" else mlp.activation), up, "glu")
    del gate, up
    out = row(ctx, product, "down_proj", ctx.hidden)
    del product, merged, x
    return out
