"""Softmax attention of transformers models: projections, rotary embedding, kernel, output.

Sources: transformers 5.23 models/llama/modeling_llama.py, integrations/sdpa_attention.py; kernel choice of
torch.nn.functional.scaled_dot_product_attention (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp).
"""

from __future__ import annotations

from memcheck.autograd import attention as kernels
from memcheck.autograd.context import Context, Setting, enter_tensor_parallel, leave_tensor_parallel
from memcheck.autograd.elementwise import cast, copy, mul, scale, shift, unary
from memcheck.autograd.indexing import clamp, index, slices
from memcheck.autograd.matrix import linear
from memcheck.autograd.tensor import Storage, Tape, Value
from memcheck.frameworks.transformers.mlp import linear_tensors
from memcheck.frameworks.transformers.norms import normalise
from memcheck.frameworks.transformers.rotary import apply_rotary, concatenates
from memcheck.job.style import Style
from memcheck.models.types import Attention, Norm

Heads = tuple[Value, Value, Value]
MASK_ALIGNMENT = 8
"""Elements to a multiple of which the memory-efficient kernel wants a mask's rows padded."""


def attention(ctx: Context, a: Attention, x: Value, stream: str) -> Value:
    """One attention module. ``stream``: dtype of the residual stream, which is that of cos and sin."""
    tape = ctx.tape
    tensors = linear_tensors(a.tensors)
    width = -(-a.heads // ctx.tp) * a.head_dim
    x = enter_tensor_parallel(ctx, x)
    gate, argument = None, x  # of the module's forward, which holds a gathered input to its end
    if a.fused_qkv:
        q, k, v = _fused_projection(ctx, a, x)
    else:
        q, k, v, gate = _projections(ctx, a, x)
    del x
    if a.rotary_dim:
        q, k = apply_rotary(ctx, a, q, k, stream)
    out = attend(ctx, a, q, k, v).view(ctx.tokens, width)
    if gate is not None:
        out = mul(tape, out, unary(tape, gate.view(ctx.tokens, width), "sigmoid"))
        del gate
    result = linear(tape, out, ctx.weights(tensors[-1], a.out_bias), tensors[-1].name)
    result = leave_tensor_parallel(ctx, result)  # a hook of the last matrix: every variable lives until it has run
    if a.adds_residual:
        ctx.named += [q, k, v]
    else:
        ctx.named = []
    del argument, out, q, k, v
    return result


def _projections(ctx: Context, a: Attention, x: Value) -> tuple[Value, Value, Value, Value | None]:
    """q_proj, k_proj, v_proj, with their norms: over each head, or over all of them before they are heads."""
    tape = ctx.tape
    tensors = linear_tensors(a.tensors)
    heads, kv_heads = -(-a.heads // ctx.tp), max(1, -(-a.kv_heads // ctx.tp))
    copies = a.rotary_dim > 0 or not keeps_strides(ctx, a)
    gate = None
    q = linear(tape, x, ctx.weights(tensors[0], a.qkv_bias), tensors[0].name)
    if a.output_gate:
        half = (ctx.tokens, q.shape[-1] // 2)
        q, gate = tape.views(q, half, half)
    q = clamp(tape, q, 2) if a.clip_qkv else q
    q = _as_heads(ctx, a, q, heads, a.query_norm, copies)
    k = linear(tape, x, ctx.weights(tensors[1], a.qkv_bias, rows=a.kv_heads), tensors[1].name)
    k = clamp(tape, k, 2) if a.clip_qkv else k
    k = _as_heads(ctx, a, k, kv_heads, a.key_norm, copies)
    v = linear(tape, x, ctx.weights(tensors[2], a.qkv_bias, rows=a.kv_heads), tensors[2].name)
    v = clamp(tape, v, 2) if a.clip_qkv else v
    return q, k, _as_heads(ctx, a, v, kv_heads, None, not keeps_strides(ctx, a)), gate


def _as_heads(ctx: Context, a: Attention, x: Value, heads: int, norm: Norm | None, copies: bool) -> Value:
    shape = (ctx.batch, heads, ctx.sequence, a.head_dim)
    if norm is not None and norm.size != a.head_dim:
        x, norm = normalise(ctx, norm._replace(size=x.shape[-1]), x, "qk_norm"), None
    x = head_view(ctx.tape, x, shape) if copies else x.view(*shape)
    return normalise(ctx, norm, x, "qk_norm").view(*shape)  # what a norm puts together head by head is flat


def _fused_projection(ctx: Context, a: Attention, x: Value) -> Heads:
    """One matrix for q, k and v, taken apart as the family does it (``fused_form``)."""
    tape = ctx.tape
    tensor = linear_tensors(a.tensors)[0]
    b, s, d = ctx.batch, ctx.sequence, a.head_dim
    heads, kv_heads = -(-a.heads // ctx.tp), max(1, -(-a.kv_heads // ctx.tp))
    qkv = linear(tape, x, ctx.weights(tensor, a.qkv_bias), tensor.name)
    if a.clip_qkv:
        qkv = clamp(tape, qkv, 2)
    q_shape, kv_shape = (b, heads, s, d), (b, kv_heads, s, d)
    if a.fused_form == "index":
        return _indexed(ctx, a, qkv)
    if a.fused_form == "slices":
        q, k, v = slices(tape, qkv, q_shape, kv_shape, kv_shape)
    else:
        if (
            a.fused_form == "heads"
        ):  # head by head: the joined gradient is not in the order of the matrix
            qkv = head_view(tape, qkv, qkv.shape)
        q, k, v = tape.views(qkv, q_shape, kv_shape, kv_shape)
    return normalise(ctx, a.query_norm, q, "qk_norm"), normalise(ctx, a.key_norm, k, "qk_norm"), v


def _indexed(ctx: Context, a: Attention, qkv: Value) -> Heads:
    """Falcon: q is a slice, k and v are picked with an index list and so copied (again, to q's heads: Falcon 40B)."""
    tape = ctx.tape
    b, s, d = ctx.batch, ctx.sequence, a.head_dim
    heads, kv_heads = -(-a.heads // ctx.tp), max(1, -(-a.kv_heads // ctx.tp))
    ctx.named.append(qkv)
    q = slices(tape, qkv, (b, heads, s, d))[0]
    indices = tape.new((1,), "int64", "head index")
    k = index(tape, qkv, indices, (b, kv_heads, s, d), "k heads")
    v = index(tape, qkv, indices, (b, kv_heads, s, d), "v heads")
    if a.expanded_kv:  # flatten(2, 3) of the slice, and of k and v broadcast to it
        if kv_heads > 1:
            q = copy(tape, q, "q heads")
        k, v = repeat_kv(tape, k, heads), repeat_kv(tape, v, heads)
    return q, k, v


def head_view(tape: Tape, x: Value, shape: tuple[int, ...]) -> Value:
    """``x.view(b, s, heads, d).transpose(1, 2)`` whose gradient comes back head by head: copied for the view."""
    out = Value(x.storage, shape, x.dtype)
    source, dtype = x.shape, x.dtype
    return tape.record(out, (x,), lambda grad: [tape.new(source, dtype, "contiguous gradient")])


def chosen_kernel(attention: str, dtype: str, a: Attention, sequence: int, style: Style) -> str:
    """``flash`` | ``efficient`` | ``math`` | ``eager``: what runs for this module on CUDA."""
    if attention in ("flash", "flex") and a.flash and not a.alibi:
        return "flash"
    if attention == "eager" or not a.sdpa or a.softcap or a.sinks:
        return "eager"
    masked = needs_mask(a, sequence, style)
    grouped = a.kv_heads != a.heads and not a.expanded_kv
    if grouped and a.fused_form == "index":
        # the fused kernels refuse fewer key heads than query heads without enable_gqa, which Falcon does not pass
        return "math"
    if masked:
        return "efficient"
    if dtype in ("bf16", "fp16") and a.head_dim <= 256:
        return "flash"
    return "math" if grouped and a.head_dim <= 256 else "efficient"


def keeps_strides(ctx: Context, a: Attention) -> bool:
    """The fused kernels return gradients in the layout of their inputs; matmuls return them head by head."""
    return kernel_of(ctx, a) in ("flash", "efficient") and not repeats_kv(ctx, a)


def kernel_of(ctx: Context, a: Attention) -> str:
    """The kernel of this module in this setting."""
    s = ctx.setting
    return chosen_kernel(s.attention, ctx.tape.autocast or s.compute, a, s.sequence, s.style)


def repeats_kv(ctx: Context, a: Attention) -> bool:
    """transformers repeats k and v for eager attention, under a mask, and for wide heads (use_gqa_in_sdpa)."""
    if a.kv_heads == a.heads or a.expanded_kv:
        return False
    masked = needs_mask(a, ctx.setting.sequence, ctx.setting.style)
    return kernel_of(ctx, a) in ("efficient", "eager") and (masked or a.head_dim > 256 or kernel_of(ctx, a) == "eager")


def needs_mask(a: Attention, sequence: int, style: Style) -> bool:
    """transformers builds an explicit mask for padding, and for a sliding window not longer than the sequence
    (masking_utils.py).
    """
    if not style.makes_masks:
        return False
    every = a.masked or a.padded or a.alibi or a.pictures
    return every or (a.window is not None and sequence >= a.window)


def attend(ctx: Context, a: Attention, q: Value, k: Value, v: Value) -> Value:
    """Scores, softmax and product by the kernel that runs; the output is what the projection reads."""
    tape = ctx.tape
    kernel = kernel_of(ctx, a)
    copied = _copied(ctx, a, q.shape[1])
    if repeats_kv(ctx, a):
        if a.named_scores and tape.autocast:  # Falcon's products repeat what autocast has cast
            k, v = cast(tape, k, tape.autocast), cast(tape, v, tape.autocast)
        k, v = repeat_kv(tape, k, q.shape[1]), repeat_kv(tape, v, q.shape[1])
    if kernel == "eager":
        if a.sinks:
            out = kernels.eager_with_sinks(tape, q, k, v, _sinks(ctx, a), ctx.unused)
            return copy(tape, out, "contiguous")
        mask_dtype = ctx.setting.compute if tape.autocast is None else ctx.setting.params
        if a.filled_scores:
            mask_dtype = "fp32"  # that of MPT's bias
        if a.named_scores:
            dropped = a.dropout if a.alibi else 0.0
            out, probabilities, named = kernels.eager_with_names(
                tape, q, k, v, mask_dtype, alibi=a.alibi, p_dropout=dropped, copied=copied
            )
            ctx.named += named
            returns(ctx, [probabilities])
            return copy(tape, out, "contiguous")
        if a.adds_residual and any(copied):  # reshaped by hand: variables until the residual sum
            q, k, v = (copy(tape, t, "contiguous") for t in (q, k, v))
            ctx.named += [q, k, v]
            copied = (False, False, False)
        weights: list[Value] = []
        out = kernels.eager(
            tape,
            q,
            k,
            v,
            _score_steps(a),
            mask_dtype=mask_dtype,
            fp32_scores=a.fp32_scores,
            fp32_softmax=a.softmax_fp32,
            p_dropout=a.dropout,
            returned=weights,
            named=ctx.named if a.adds_residual or a.filled_scores else None,
            every_step=a.adds_residual,
            copied=copied,
        )
        if a.returns_weights:
            returns(ctx, weights)
        else:
            ctx.unused += weights
        return copy(tape, out, "contiguous")
    if kernel == "math":
        return _broadcasting(ctx, a, q, k, v) if a.fused_form == "index" else _math(ctx, a, q, k, v)
    arguments = k, v  # repeated, they are variables of sdpa_attention_forward while the kernel runs
    if tape.autocast:
        q, k, v = (cast(tape, t, tape.autocast) for t in (q, k, v))
    mask = None
    if kernel == "efficient" and needs_mask(a, ctx.setting.sequence, ctx.setting.style):
        mask = _kernel_mask(ctx, a, v.dtype)
    ring = ctx.setting.context
    out = kernels.flash(tape, q, k, v, v.shape[-1], label=f"{kernel} attention", extra=mask, ring=ring)
    del arguments
    if a.sinks:
        out = kernels.with_sinks(tape, out, _sinks(ctx, a))
    # flash writes its output in q's strides: a q that was built contiguous (cat of rotated and plain parts) makes
    # transpose(1, 2) non-contiguous, so o_proj's input is one more copy; the memory-efficient kernel's is not.
    if kernel == "flash" and concatenates(a) and a.rotary_form != "pairs-each":
        out = copy(tape, out, "contiguous")
    return out


def _sinks(ctx: Context, a: Attention) -> Value:
    return ctx.tape.parameter(ctx.parameter("self_attn.sinks", (-(-a.heads // ctx.tp),)))


def shares_mask(a: Attention, setting: Setting) -> bool:
    """Whether the kernel of every layer keeps the model's own mask: additive, in the queries' dtype, and aligned."""
    kernel = chosen_kernel(setting.attention, setting.autocast or setting.compute, a, setting.sequence, setting.style)
    additive = a.alibi and a.named_scores  # Falcon adds ALiBi's bias to the mask of every head
    return additive and kernel == "efficient" and setting.autocast is None and not setting.sequence % MASK_ALIGNMENT


def _kernel_mask(ctx: Context, a: Attention, dtype: str) -> Storage | None:
    """What the memory-efficient kernel keeps as its ``attn_bias``; None: the model's own.

    aten/src/ATen/native/transformers/attention.cpp: ``convert_boolean_attn_mask`` makes a boolean mask additive,
    ``pad_bias`` copies rows that are no multiple of 8 long. Autocast casts an additive mask, as any other argument.
    """
    if shares_mask(a, ctx.setting):
        return None
    mask = _additive_mask(ctx, a, dtype)
    if ctx.sequence % MASK_ALIGNMENT:
        wide = -(-ctx.sequence // MASK_ALIGNMENT) * MASK_ALIGNMENT
        each = -(-a.heads // ctx.tp) if a.alibi else 1
        mask = ctx.tape.new((ctx.batch, each, ctx.sequence, wide), dtype, "padded attention mask")
    return mask


def _additive_mask(ctx: Context, a: Attention, dtype: str) -> Storage | None:
    """What a kernel adds to its scores, where that is not the model's own mask: a boolean one made additive, or
    Falcon's with ALiBi's bias as autocast casts it.
    """
    if not a.alibi:
        return ctx.tape.new((ctx.batch, 1, ctx.sequence, ctx.sequence), dtype, "attention mask")
    if ctx.setting.autocast is None:
        return None
    return ctx.tape.new((ctx.batch, -(-a.heads // ctx.tp), ctx.sequence, ctx.sequence), dtype, "attention mask")


def returns(ctx: Context, weights: list[Value]) -> None:
    """The layer's second output, which lives on; a recompute that ends early returns none."""
    frame = ctx.tape.frame
    if frame is None or frame.again is None or frame.returned is not None:
        ctx.returned += weights


def _copied(ctx: Context, a: Attention, heads: int) -> kernels.Copied:
    """Which of q, k and v torch.matmul copies because it folds batch and heads into one dimension (aten
    LinearAlgebra.cpp, _matmul_impl): of several sequences those whose heads are not one behind the other.

    A transposed view's are not, and a rotation keeps the strides of what it is given, unless it ends in a ``cat``.
    Repeated heads are; a single head that is repeated is a view with stride 0.
    """
    if ctx.setting.batch == 1:
        return False, False, False
    turned = not (a.rotary_dim > 0 and (concatenates(a) or a.rotary_form == "chunks"))
    if repeats_kv(ctx, a):
        single = max(1, -(-a.kv_heads // ctx.tp)) == 1 < heads
        return turned, single, single
    return turned, turned, True


def _score_steps(a: Attention) -> tuple[str, ...]:
    """What the family does to the scores before the softmax."""
    if a.softcap:
        return ("scale", "cap", "add")
    if a.alibi:  # MPT: scale, bias, masked_fill; BLOOM: baddbmm scales and adds the bias by itself
        return ("add",) if a.fused_form == "heads" else ("scale", "add", "fill")
    return ("scale", "add")


def repeat_kv(tape: Tape, x: Value, heads: int, *, copies: bool = False) -> Value:
    """``expand(...).reshape(...)``: a copy with as many heads as q; of a single head, a view with stride 0, unless it
    ``copies``.
    """
    shape = (x.shape[0], heads, x.shape[2], x.shape[3])
    small, dtype = x.shape, x.dtype
    out = Value(x.storage, shape, dtype) if small[1] == 1 and not copies else tape.value(shape, dtype, "repeat_kv")
    return tape.record(out, (x,), lambda grad: [tape.new(small, dtype, "sum")])


def _math(ctx: Context, a: Attention, q: Value, k: Value, v: Value) -> Value:
    """aten _scaled_dot_product_attention_math: scaled q and k, scores with a causal mask, softmax, product.

    ``enable_gqa`` repeats the heads of keys and values first, also of a single one (repeat_interleave). Both, and the
    additive mask, are variables to the end.
    """
    tape = ctx.tape
    b, h, s, _ = q.shape
    if k.shape[1] != h:
        k, v = (repeat_kv(tape, t, h, copies=True) for t in (k, v))
    expanded, mask = k, tape.new((s, s), q.dtype, "causal mask")
    q, k = scale(tape, q), scale(tape, k)
    turned = _copied(ctx, a, h)[0]
    weights = kernels.batched(tape, q, k, (b, h, s, s), "attention scores", (turned, False))
    del k
    weights = scale(tape, weights, "attention mask")
    weights = kernels.softmax(tape, weights)
    out = kernels.batched(tape, weights, v, (b, h, s, v.shape[-1]), "attention output")
    del weights, expanded, mask
    return copy(tape, out, "contiguous")


def _broadcasting(ctx: Context, a: Attention, q: Value, k: Value, v: Value) -> Value:
    """The math kernel without ``enable_gqa``: its products broadcast the heads of keys and values. The model's mask is
    made additive in the queries' dtype.

    Half precision is computed in fp32 unless ``allow_fp16_bf16_reduction_math_sdp`` is set, and the weights are cast
    back, too, for a second result that nobody takes (aten/src/ATen/native/transformers/attention.cpp). Autocast casts
    what the function gets, and nothing inside it.
    """
    tape = ctx.tape
    outside, tape.autocast = tape.autocast, None
    try:
        if outside:
            q, k, v = (cast(tape, t, outside) for t in (q, k, v))
        mask = _additive_mask(ctx, a, q.dtype)
        half = q.dtype if q.dtype in ("bf16", "fp16") else ""
        wide_q, wide_k, wide_v = (cast(tape, t, "fp32") for t in (q, k, v)) if half else (q, k, v)
        b, h, s, _ = q.shape
        scaled = scale(tape, wide_q)
        keys = _spread(tape, scale(tape, wide_k), h)
        turned = _copied(ctx, a, h)[0]
        weights = kernels.batched(tape, scaled, keys, (b, h, s, s), "attention scores", (turned, False))
        del keys
        weights = shift(tape, weights, "attention mask")
        weights = kernels.softmax(tape, weights)
        narrow = tape.value(weights.shape, half, "unused weights") if half else None
        out = kernels.batched(tape, weights, _spread(tape, wide_v, h), (b, h, s, v.shape[-1]), "attention output")
        if half:
            out = cast(tape, out, half)
        del weights, narrow, mask, scaled, wide_q, wide_k, wide_v
    finally:
        tape.autocast = outside
    return copy(tape, out, "contiguous")


def _spread(tape: Tape, x: Value, heads: int) -> Value:
    """Keys or values for every query head: a batched product folds batch and heads, which of several sequences is a
    copy.
    """
    if x.shape[1] == heads:
        return x
    small, dtype = x.shape, x.dtype
    shape = (small[0], heads, *small[2:])
    view = small[0] == 1 and small[1] == 1
    out = Value(x.storage, shape, dtype) if view else tape.value(shape, dtype, "expanded heads")
    return tape.record(out, (x,), lambda grad: [tape.new(small, dtype, "sum")])
