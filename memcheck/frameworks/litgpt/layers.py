"""LitGPT's decoder layer: one qkv matrix, LoRA padded to all of q, k and v, rotary tables in fp32.

Sources: litgpt model.py (Block, CausalSelfAttention, apply_rope, RMSNorm, LLaMAMLP) and lora.py (LoRALinear,
LoRAQKVLinear) at 26857050; bitsandbytes 0.42.0, the one version that LitGPT supports, for 4-bit layers.

LitGPT's capped numbers (Gemma 2): scores, which no kernel caps, so that all of them are made, and logits.

Source: litgpt model.py at 26857050 (CausalSelfAttention.scaled_dot_product_attention, do_softcapping).

LitGPT's head and loss: logits in pieces of 128 tokens, each returned in fp32, and a cross entropy over each.

Sources: litgpt finetune/lora.py (``lm_head_chunk_size=128``), finetune/full.py, utils.py (chunked_cross_entropy) at
26857050; Fabric's ``convert_output`` turns what the model returns to fp32.

Tensors that LitGPT's models hold in addition to their parameters: rotary tables in fp32.
"""

from __future__ import annotations

from memcheck.autograd import kernels
from memcheck.autograd.context import Context, Setting, adapts
from memcheck.autograd.curve import Forward
from memcheck.autograd.kernels import Weights, dense, product, rotate_half
from memcheck.autograd.loss import Pieces, counted_as, cross_entropy, in_pieces
from memcheck.autograd.modules import activation, cast_offset, fused_norm
from memcheck.autograd.operator import (
    add,
    cast,
    cat,
    convert_weight,
    copy,
    dropout,
    mean_rows,
    mul,
    operator,
    repeat_kv,
    scale,
    shift,
    slices,
    unary,
)
from memcheck.autograd.tensor import Parameter, Storage, Tape, Value
from memcheck.frameworks.transformers.head import Head, head_unit
from memcheck.frameworks.transformers.rotary import rotary_caches, tables
from memcheck.models.parameters import linear_tensors
from memcheck.models.types import Architecture, Attention, Block, Mlp, Norm, ParameterTensor


def capped(tape: Tape, x: Value) -> Value:
    """``torch.tanh(x / thresh) * thresh``."""
    return scale(tape, unary(tape, scale(tape, x, "softcap"), "tanh"), "softcap")


def capped_attention(ctx: Context, attention: Attention, q: Value, k: Value, v: Value) -> Value:
    """Run attention with capped scores (Gemma 2): all scores, an fp32 softmax, probabilities in q's dtype.

    ``q``, ``k``, ``v``: [batch, heads, sequence, head_dim]. Scores are [batch, heads, sequence, sequence].
    """
    tape = ctx.tape
    batch, heads, sequence, head_dim = q.shape
    window_mask = _capped_window_mask(ctx, q.dtype) if attention.window is not None else None
    # v is then a view of the matrix of q, k and v, which the product copies
    v_not_contiguous = batch > 1 and attention.kv_heads == attention.heads
    scores = kernels.batched(tape, q, k, (batch, heads, sequence, sequence), "attention scores")
    scores = scale(tape, scores, "attention scaling")
    scores = capped(tape, scores)
    mask = window_mask or _causal_mask(ctx, q.dtype)
    scores = shift(tape, scores, "attention mask", q.dtype)
    scores = cast(tape, kernels.softmax(tape, scores, "fp32"), q.dtype, "attention probabilities")
    out = kernels.batched(
        tape, scores, v, (batch, heads, sequence, head_dim), "attention output", (False, v_not_contiguous)
    )
    del scores, mask, window_mask  # variables of scaled_dot_product_attention
    return out


def _causal_mask(ctx: Context, dtype: str) -> Storage:
    """Make the causal mask, [sequence, sequence]: ``ones.triu(diagonal=1)``, filled where it is true."""
    tape, shape = ctx.tape, (ctx.sequence, ctx.sequence)
    ones = tape.new(shape, dtype, "ones")
    mask = tape.new(shape, dtype, "attention mask")
    del ones
    is_masked = tape.new(shape, "bool", "attention mask")  # `mask.bool()`, an argument of masked_fill_
    del is_masked
    return mask


def _capped_window_mask(ctx: Context, dtype: str) -> Storage:
    """Make the mask of a sliding window, [sequence, sequence].

    It is filled row by row while the causal mask is alive, whose place it takes.
    """
    causal = _causal_mask(ctx, dtype)
    mask = ctx.tape.new((ctx.sequence, ctx.sequence), dtype, "sliding window mask")
    del causal
    return mask


__all__ = ["block", "head_unit", "loss_in_pieces", "norm", "recomputing", "rotary_caches", "rotary_tables"]

LORA_DROPOUT = 0.05
"""litgpt/finetune/lora.py, ``lora_dropout``."""


def block(ctx: Context, layer: Block, x: Value) -> Value:
    """Run LitGPT's Block.forward, ``x``: [tokens, hidden]; so is what is returned. Its local variables live until it
    returns.
    """
    tape = ctx.tape
    normed = norm(ctx, layer.input_norm, x)
    attn_output = _attention(ctx, layer.mixer, normed) if isinstance(layer.mixer, Attention) else normed
    attn_output = norm(ctx, layer.mixer_output_norm, attn_output)
    if layer.parallel:
        if layer.mlp_norm is not None:
            normed = norm(ctx, layer.mlp_norm, x)
        x = add(tape, attn_output, x, "residual")
    else:
        x = add(tape, attn_output, x, "residual")
        normed = norm(ctx, layer.mlp_norm, x)
    mlp_output = _mlp(ctx, layer.mlp, normed) if isinstance(layer.mlp, Mlp) else normed
    mlp_output = norm(ctx, layer.mlp_output_norm, mlp_output)
    return add(tape, mlp_output, x, "residual")


def recomputing(layer: Block, mode: str) -> tuple[Forward, bool]:
    """Return the layer's forward under a recompute mode, and whether the whole layer is checkpointed."""
    return lambda ctx, x: block(ctx, layer, x), mode == "full"


def norm(ctx: Context, spec: Norm | None, x: Value) -> Value:
    """Apply LitGPT's RMSNorm in fp32 pieces, with an fp32 copy of the weight, or F.layer_norm in one kernel.

    The pieces are ``x * x``, mean, rsqrt, two products and a cast. Each makes a tensor of x's shape or of one number
    per row.
    """
    if spec is None:
        return x
    tape = ctx.tape
    weight, bias = ctx.norm_weight(spec)
    if not spec.kind.startswith("rmsnorm"):
        return fused_norm(tape, x, weight, bias, "layernorm")
    fp32_x = cast(tape, x, "fp32")
    rstd = unary(tape, mean_rows(tape, mul(tape, fp32_x, fp32_x, "x * x")), "rsqrt")
    normed = mul(tape, fp32_x, rstd)
    if weight is None:
        return cast(tape, normed, x.dtype)
    if spec.kind == "rmsnorm-unit-offset":
        factor = cast_offset(tape, weight)
    else:
        factor = convert_weight(tape, tape.parameter(weight), "fp32")
    return cast(tape, mul(tape, normed, factor), x.dtype)


def _attention(ctx: Context, attention: Attention, x: Value) -> Value:
    """Run LitGPT's CausalSelfAttention. Input ``x`` and output are [tokens, hidden].

    One matrix computes q, k and v. Keys and values are repeated for every query head, even a single one.
    """
    tape = ctx.tape
    batch, sequence, head_dim = ctx.batch, ctx.sequence, attention.head_dim
    qkv = _qkv(ctx, attention, x)
    q, k, v = tape.views(
        qkv,
        (batch, attention.heads, sequence, head_dim),
        (batch, attention.kv_heads, sequence, head_dim),
        (batch, attention.kv_heads, sequence, head_dim),
    )
    q, k = norm(ctx, attention.query_norm, q), norm(ctx, attention.key_norm, k)
    q_roped, k_roped = _apply_rope(tape, q, attention.rotary_dim), _apply_rope(tape, k, attention.rotary_dim)
    q, k = _cat_rotary(tape, q_roped, q), _cat_rotary(tape, k_roped, k)
    if attention.kv_heads != attention.heads:  # a single head, too: "flash attention requires it in training mode"
        k, v = _repeated(tape, k, attention.heads), _repeated(tape, v, attention.heads)
    if attention.softcap:
        out = capped_attention(ctx, attention, q, k, v)
    else:
        mask = _window_mask(ctx, attention, q.dtype)
        label = "efficient attention" if mask is not None else "flash attention"
        out = kernels.flash(tape, q, k, v, head_dim, label=label, extra=mask)
        del mask
    out = copy(tape, out, "y.reshape")  # q is contiguous head by head, so the output is
    tensor = linear_tensors(attention.tensors)[-1]
    result = _linear(ctx, out.view(ctx.tokens, attention.heads * head_dim), tensor, attention.out_bias)
    del qkv, q_roped, k_roped  # variables to the end
    return result


def _window_mask(ctx: Context, attention: Attention, dtype: str) -> Storage | None:
    """Make the mask of a sliding window, [sequence, sequence], or return None without one.

    Every layer makes its own, and the memory-efficient kernel keeps it. config.py gives Phi 3 a ``sliding_window_size``
    and Mistral none.
    """
    if attention.window is None or attention.fused_qkv != "slices":
        return None
    shape = (ctx.sequence, ctx.sequence)
    causal = ctx.tape.new(shape, dtype, "causal mask")
    mask = ctx.tape.new(shape, dtype, "sliding window mask")
    del causal
    return mask


def _repeated(tape: Tape, x: Value, heads: int) -> Value:
    """Repeat keys or values for every query head: [batch, heads, sequence, head_dim]; a single head by
    ``repeat_interleave``.
    """
    if x.shape[1] > 1:
        return repeat_kv(tape, x, heads)
    shape, dtype = x.shape, x.dtype
    return operator(tape, tape.value((shape[0], heads, *shape[2:]), dtype, "repeat_interleave"), x, "sum")


def _apply_rope(tape: Tape, x: Value, rotary_dim: int) -> Value:
    """Run apply_rope with fp32 tables on the first ``rotary_dim`` elements of each head."""
    if rotary_dim < x.shape[-1]:
        x = slices(tape, x, (*x.shape[:-1], rotary_dim))[0]
    return cast(tape, rotate_half(tape, x, "fp32"), x.dtype)


def _cat_rotary(tape: Tape, rotated: Value, x: Value) -> Value:
    """Concatenate the rotated elements of each head with the rest of ``x``; ``cat`` copies even if there is no rest."""
    width = rotated.shape[-1]
    if width == x.shape[-1]:
        return copy(tape, rotated, "cat rotary")
    unrotated = slices(tape, x, (*x.shape[:-1], x.shape[-1] - width))[0]
    return cat(tape, (rotated, unrotated), x.shape, "cat rotary")


def _mlp(ctx: Context, mlp: Mlp, x: Value) -> Value:
    """Run LLaMAMLP or GemmaMLP (fc_1, fc_2, proj), or GptNeoxMLP (fc, proj). ``x``: [tokens, hidden].

    LitGPT stores a fused gate and up projection as two matrices.
    """
    tape = ctx.tape
    tensors = linear_tensors(mlp.tensors)
    if not mlp.gated:
        hidden = _activation(tape, _linear(ctx, x, tensors[0], mlp.bias), mlp.activation)
        return _linear(ctx, hidden, tensors[-1], mlp.bias)
    gate_matrix, up_matrix = tensors[0], tensors[1]
    if mlp.fused_gate_up:
        rows, columns = gate_matrix.shape
        gate_matrix = up_matrix = gate_matrix._replace(shape=(rows // 2, columns))
    gate = _linear(ctx, x, gate_matrix, mlp.bias)
    up = _linear(ctx, x, up_matrix, mlp.bias)
    hidden = mul(tape, _activation(tape, gate, mlp.activation), up)
    return _linear(ctx, hidden, tensors[-1], mlp.bias)


def _activation(tape: Tape, x: Value, name: str) -> Value:
    """Apply the activation; F.gelu(approximate=...) is one kernel, where transformers writes several operators."""
    return unary(tape, x, "gelu") if name.startswith("gelu") else activation(tape, x, name)


def _linear(ctx: Context, x: Value, tensor: ParameterTensor, bias: bool) -> Value:
    return adapted_linear(ctx, x, ctx.weights(tensor, bias), tensor.name)


def adapted_linear(ctx: Context, x: Value, weights: Weights, label: str) -> Value:
    """Run LoRALinear: ``linear(x) + (dropout(x) @ A.T @ B.T) * scaling``, or only the base product without
    an adapter.
    """
    tape = ctx.tape
    pretrained = frozen_linear(ctx, x, weights, label)
    if weights.lora_a is None or weights.lora_b is None:
        return pretrained
    dropped = dropout(tape, x, lora_dropout(ctx))
    down = product(tape, dropped, tape.parameter(weights.lora_a), f"{label}.lora_A")
    up = product(tape, down, tape.parameter(weights.lora_b), f"{label}.lora_B")
    del dropped, down
    return add(tape, pretrained, scale(tape, up, "lora scaling"), "lora sum")


def frozen_linear(ctx: Context, x: Value, weights: Weights, label: str) -> Value:
    """Run the base product of a layer, with its weight in 4 bit if the plan quantizes: [..., inputs] to [..., outputs].

    ``weights`` is changed: its fields for quantized weights are set. The 4-bit product keeps its input (bitsandbytes
    0.42.0, ``ctx.tensors = (A, B)``). Its weight is dequantized to fp16, in which Fabric quantized it
    (plugins/precision/bitsandbytes.py), and then cast to the dtype of ``x``.
    """
    adapter = ctx.setting.adapter
    weights.quantized = adapter is not None and adapter.base_format is not None
    if weights.quantized:
        weights.keeps_input, weights.dequantized_dtype = True, "fp16"
    return dense(ctx.tape, x, weights, label)


def lora_dropout(ctx: Context) -> float:
    """Return the dropout probability of LoRA: the plan's option, or the script's default."""
    stated = ctx.setting.option("lora_dropout")
    return float(stated) if isinstance(stated, (int, float)) else LORA_DROPOUT


def _qkv(ctx: Context, attention: Attention, x: Value) -> Value:
    """Run LoRAQKVLinear: [tokens, hidden] to q, k and v together, [tokens, (heads + 2 * kv_heads) * head_dim].

    Updates of the adapted parts are padded with zeros to the width of all three.
    """
    tape, adapter = ctx.tape, ctx.setting.adapter
    tensors = linear_tensors(attention.tensors)[:-1]
    kv_width = attention.kv_heads * attention.head_dim
    part_widths = (attention.heads * attention.head_dim, kv_width, kv_width)
    base = Weights(
        ctx.parameter("self_attn.qkv", (sum(part_widths), ctx.hidden)),
        ctx.parameter("self_attn.qkv.bias", (sum(part_widths),)) if attention.qkv_bias else None,
    )
    pretrained = frozen_linear(ctx, x, base, "self_attn.qkv")
    if adapter is None:
        return pretrained
    names = [t.name.removesuffix(".weight") for t in tensors]
    part_names = names if len(names) == 3 else [names[0]] * 3  # one fused matrix, or one for each of q, k and v
    adapted_widths = [width for width, name in zip(part_widths, part_names, strict=True) if adapts(adapter, name)]
    if not adapted_widths:
        return pretrained
    has_grad = ctx.setting.has_grad
    down_shape, up_shape = (adapter.rank * len(adapted_widths), int(ctx.hidden)), (sum(adapted_widths), adapter.rank)
    down = ctx.register(Parameter("lora_A", down_shape, adapter.dtype, requires_grad=True, has_grad=has_grad))
    up = ctx.register(Parameter("lora_B", up_shape, adapter.dtype, requires_grad=True, has_grad=has_grad))
    after_a = product(tape, dropout(tape, x, lora_dropout(ctx)), tape.parameter(down), "lora_A")
    convolutions = len(adapted_widths) if attention.heads != attention.kv_heads else 1
    after_b = _conv1d(tape, after_a, up, convolutions)
    padded = after_b if len(adapted_widths) == 3 else _zero_pad(tape, after_b, sum(part_widths))
    scaled = scale(tape, padded, "lora scaling")
    return add(tape, pretrained, scaled, "lora sum")


def _conv1d(tape: Tape, x: Value, weight: Parameter, convolutions: int) -> Value:
    """Replay ``F.conv1d`` with kernel width 1, which keeps its input: [tokens, rank] to [tokens, outputs].

    ``convolutions``: with grouped queries one for each adapted part, whose outputs are joined by a cat.
    """
    shape = (x.shape[0], weight.shape[0])
    part_outputs = tape.new(shape, x.dtype, "convolutions of q, k, v") if convolutions > 1 else None
    out = tape.value(shape, x.dtype, "convolution")
    del part_outputs
    return operator(tape, out, (x, tape.parameter(weight)), ["convolution dX", "convolution dW"], saves=(x,))


def _zero_pad(tape: Tape, x: Value, width: int) -> Value:
    """Replay ``new_zeros(...).index_copy_(-1, lora_ind, x)``: [tokens, adapted width] to [tokens, ``width``].

    Autograd keeps x and a copy of the index.
    """
    index = tape.new((x.shape[1],), "int64", "lora_ind.clone()")
    return operator(tape, tape.value((x.shape[0], width), x.dtype, "zero_pad"), x, "index_select", saves=(x, index))


PIECE = 128
"""Tokens of each sequence whose logits are made at once, and over which one cross entropy runs."""


def loss_in_pieces(ctx: Context, head: Head, hidden: Value, weights: Weights) -> Value:
    """Compute logits and loss of LitGPT in chunks of 128 tokens. ``hidden``: the normed states, [tokens, hidden].

    The last step's logits, and its graph if the script keeps it, live until this step's logits replace them.
    """
    tape = ctx.tape
    sizes = [Pieces(size * ctx.batch, copies) for size, copies in in_pieces(ctx.sequence, PIECE)]
    last_step = []
    for size, copies in sizes:
        with counted_as(tape, copies):
            last_step.append(tape.new((size, head.vocab), "fp32", "logits of the step before"))
    if head.previous_graph_bytes:
        last_step.append(tape.new((head.previous_graph_bytes,), "int8", "inputs in the graph of the step before"))
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
    """Compute chunked logits as finetune/lora.py does: the head runs on slices of the hidden states.

    ``sizes``: rows of each replayed chunk, and for how many equal chunks it counts.
    """
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

    ``sizes``: as in :func:`_chunked_logits`. finetune/full.py cuts off the last position, which copies the logits if
    there are several sequences. pretrain.py has a target for each position.
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
    if not head.caps_logits:
        return logits

    return capped(ctx.tape, logits)


def rotary_tables(architecture: Architecture, setting: Setting) -> int:
    """cos and sin, buffers that are made anew in the default dtype."""
    return tables(architecture, setting, "fp32")
