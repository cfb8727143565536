"""torchtune's decoder layer, head and losses.

Sources: torchtune modules/{attention,feed_forward,rms_norm,position_embeddings,transformer}.py, modules/peft/lora.py,
modules/loss/ce_chunked_output_loss.py at 1814feb17, modules/loss/cross_entropy_loss.py at bd2a0fc7c. The layer is
transformers' but for its attention, which copies keys and values to every query head, and for the rotation.

torchtune's attention of Gemma 2, whose scores are capped: no kernel does that, so that all of them are made.

Source: torchtune models/gemma2/_attention.py at bd2a0fc7c, Gemma2Attention.forward, without a mask of its own.

torchtune's norms: RMSNorm in pieces whose fp32 product has no name; Gemma's is transformers' (models/gemma).

torchtune's rotary modules, each with a table of all positions that the model was made for.

Sources at bd2a0fc7c: torchtune modules/position_embeddings.py, models/{llama3_1,phi3,qwen2}/_position*_embeddings.py;
which builder makes one module for all layers, and which one for each: models/*/_component_builders.py.

Tensors that torchtune's models hold in addition to their parameters: rotary tables of all positions.
"""

from __future__ import annotations

from memcheck.autograd import kernels
from memcheck.autograd.context import Context, Setting
from memcheck.autograd.curve import Forward
from memcheck.autograd.kernels import Weights, linear, rotate_half
from memcheck.autograd.loss import compiled_cross_entropy, counted_as, cross_entropy, in_pieces
from memcheck.autograd.modules import normalise as transformers_norm
from memcheck.autograd.operator import (
    add,
    cast,
    cat,
    copy,
    mean_rows,
    mul,
    power,
    repeat_kv,
    scale,
    scale_in_place,
    shift,
    unary,
)
from memcheck.autograd.tensor import ITEM_BYTES, Storage, Value, ceil_div, rounded
from memcheck.errors import UnsupportedError
from memcheck.frameworks.torch.compiled import compiled_block, is_traced
from memcheck.frameworks.transformers.head import Head, head_unit
from memcheck.frameworks.transformers.layers import block_parts, feed_forward
from memcheck.frameworks.transformers.rotary import rotary_width
from memcheck.frameworks.transformers.rotary_own import rotate_pairs
from memcheck.models.parameters import linear_tensors
from memcheck.models.types import Architecture, Attention, Block, Norm, ParameterTensor


def norm(ctx: Context, norm: Norm | None, x: Value, name: str = "norm") -> Value:
    """Apply torchtune's RMSNorm.forward in pieces, or transformers' norm for another kind. ``x``: rows to norm.

    The input, its fp32 copy and the rounded product are variables of it. Source: modules/rms_norm.py.
    """
    if norm is None or norm.kind != "rmsnorm":
        return transformers_norm(ctx, norm, x, name)
    tape = ctx.tape
    weight, _ = ctx.norm_weight(norm, name)
    fp32_x = cast(tape, x, "fp32")
    rstd = unary(tape, mean_rows(tape, power(tape, fp32_x)), "rsqrt")
    normed = cast(tape, mul(tape, fp32_x, rstd), x.dtype)
    del rstd
    out = normed if weight is None else mul(tape, normed, tape.parameter(weight))
    del fp32_x, normed
    return out


SCALED_FROM = 8192
"""Llama models of more positions are 3.1 or later: their rotation is scaled, and made once with adapters, too."""


def turns_halves(attention: Attention) -> bool:
    """Phi 3's and Qwen's modules turn halves of a head; the others turn pairs."""
    return is_phi3(attention) or attention.qkv_bias or attention.query_norm is not None


def is_phi3(attention: Attention) -> bool:
    """Phi 3 is the family of these whose rotation ends in a ``cat`` in transformers, too."""
    return attention.rotation.form == "cat"


def rotate(ctx: Context, attention: Attention, x: Value) -> Value:
    """Rotate heads, [batch, heads, sequence, head_dim], in fp32 and cast back.

    Qwen's module casts its rows of the table to the input's dtype instead.
    """
    tape = ctx.tape
    if not turns_halves(attention):
        return cast(tape, rotate_pairs(tape, cast(tape, x, "fp32"), "fp32"), x.dtype)
    if is_phi3(attention):
        return cast(tape, rotate_half(tape, x, "fp32", holds=True), x.dtype)
    tables: tuple[Storage, ...] = ()
    if x.dtype != "fp32":
        rows = (ctx.sequence, attention.head_dim)
        tables = (tape.new(rows, x.dtype, "cos"), tape.new(rows, x.dtype, "sin"))
    return rotate_half(tape, x, x.dtype, tables, holds=True)


def table_bytes(architecture: Architecture, sequence: int) -> int:
    """Return the bytes of the buffer ``cache`` in fp32: [positions, dim / 2, 2] of pairs, or [positions, 2 dim] of
    halves.
    """
    positions = max(architecture.max_position_embeddings, sequence)
    mixers = [block.mixer for block, _ in architecture.blocks]
    numbers_per_channel = 2 if any(isinstance(m, Attention) and turns_halves(m) for m in mixers) else 1
    return rounded(positions * rotary_width(architecture) * numbers_per_channel * ITEM_BYTES["fp32"])


def tables(architecture: Architecture, layers: int, *, adapted: bool) -> int:
    """Count the rotary tables of a model: its builders with adapters make one in each layer.

    ``layers``: layers of the rank. ``adapted``: the model has adapters.
    """
    scaled = architecture.model_type == "llama" and architecture.max_position_embeddings > SCALED_FROM
    return layers if adapted and not scaled else 1


__all__ = ["block", "head_unit", "loss_in_pieces", "norm", "recomputing", "rotary_caches", "rotary_tables"]


def block(ctx: Context, layer: Block, x: Value) -> Value:
    """Run one torchtune layer, ``x``: [tokens, hidden]. ``training.compile_model`` compiles each layer by itself.

    Checkpointing wraps the compiled layer. Raises ``UnsupportedError`` for quantization-aware training with compile.
    """
    if ctx.setting.compiled and ctx.setting.option("quantizer"):
        message = "torchtune does not compile a model of quantization-aware training"
        raise UnsupportedError(message, "leave `compile` out", "/training/compile")
    if ctx.setting.compiled and is_traced(layer, ctx.setting):
        return compiled_block(ctx, layer, x, "none", repeated=True)
    return _eager_block(ctx, layer, x)


def recomputing(layer: Block, mode: str) -> tuple[Forward, bool]:
    """Return the layer's forward under a recompute mode, and whether the whole layer is checkpointed."""
    return lambda ctx, x: block(ctx, layer, x), mode == "full"


def _eager_block(ctx: Context, block: Block, x: Value) -> Value:
    """Run TransformerSelfAttentionLayer: ``h = x + scale(attention(norm(x)))``, then ``h + scale(mlp(norm(h)))``.

    Only Gemma 2 has scales, which are norms. The outputs of attention and feed-forward are variables to the end. Their
    inputs are variables until the modules return. Source: modules/transformer.py.
    """
    mixer, mlp = block.mixer, block.mlp
    if not isinstance(mixer, Attention) or mlp is None or block.parallel:
        return block_parts(ctx, block, x)  # which torchtune has no builder for
    normed = norm(ctx, block.input_norm, x)
    attn_output = _attention(ctx, mixer, normed)
    hidden = add(ctx.tape, norm(ctx, block.mixer_output_norm, attn_output), x, "residual")
    normed = norm(ctx, block.mlp_norm, hidden)
    mlp_output = feed_forward(ctx, mlp, normed)
    del normed
    out = add(ctx.tape, hidden, norm(ctx, block.mlp_output_norm, mlp_output), "residual")
    del attn_output, mlp_output
    return out


def _attention(ctx: Context, attention: Attention, x: Value) -> Value:
    """Run torchtune's MultiHeadAttention with flex attention, or with capped scores. ``x``: [tokens, hidden].

    Keys and values are repeated for every query head before the kernel.
    """
    tape = ctx.tape
    q_matrix, k_matrix, v_matrix = _qkv_matrices(attention)
    q = _heads(ctx, attention, q_matrix, x, attention.heads)
    q = norm(ctx, attention.query_norm, q, "qk_norm")
    q = rotate(ctx, attention, q)
    k = _heads(ctx, attention, k_matrix, x, attention.kv_heads)
    v = _heads(ctx, attention, v_matrix, x, attention.kv_heads)
    k = rotate(ctx, attention, norm(ctx, attention.key_norm, k, "qk_norm"))
    if attention.kv_heads != attention.heads:
        k, v = repeat_kv(tape, k, attention.heads), repeat_kv(tape, v, attention.heads)
    if attention.softcap:
        out = capped_attention(ctx, attention, q, k, v)
    else:
        out = kernels.flash(tape, q, k, v, attention.head_dim, label="flex attention")
    rows = out.view(ctx.tokens, attention.heads * attention.head_dim)
    result = linear(tape, rows, ctx.weights(linear_tensors(attention.tensors)[-1], attention.out_bias), "output")
    del out, rows, q, k, v  # variables of MultiHeadAttention.forward
    return result


def _qkv_matrices(attention: Attention) -> list[ParameterTensor]:
    """Return the matrices of q, k and v; a matrix that transformers fuses is three in torchtune."""
    matrices = linear_tensors(attention.tensors)
    if not attention.fused_qkv:
        return list(matrices[:3])
    fused, head_dim = matrices[0], attention.head_dim
    heads_of_each = (attention.heads, attention.kv_heads, attention.kv_heads)
    return [fused._replace(shape=(heads * head_dim, fused.shape[1])) for heads in heads_of_each]


def _heads(ctx: Context, attention: Attention, matrix: ParameterTensor, x: Value, heads: int) -> Value:
    """Project the input to heads, [batch, heads, sequence, head_dim]."""
    out = linear(ctx.tape, x, ctx.weights(matrix, attention.qkv_bias), matrix.name)
    return out.view(ctx.batch, heads, ctx.sequence, attention.head_dim)


def loss_in_pieces(ctx: Context, head: Head, hidden: Value, weights: Weights) -> Value | None:
    """Compute the chunked losses from the normed hidden states ``hidden``, [tokens, hidden]. Returns None for any other
    loss.
    """
    if head.loss.kind == "fused-linear":
        return _linear_cross_entropy(ctx, head, hidden, weights)
    return _chunked_output(ctx, head, hidden, weights) if head.loss.kind == "chunked" else None


def _chunked_output(ctx: Context, head: Head, hidden: Value, weights: Weights) -> Value:
    """Replay CEWithChunkedOutputLoss: all chunks' logits live; each chunk is upcast and its loss computed by itself.

    The recipe's list refers to every chunk's logits until the loss returns.
    """
    tape, copies = ctx.tape, _copies(head)
    logits, losses = [], []
    for chunk, copies_of_chunk in zip(_chunks(ctx, head, hidden), copies, strict=True):
        with counted_as(tape, copies_of_chunk):
            logits.append(linear(tape, chunk, weights, "output"))
    del hidden, chunk
    for chunk_logits, copies_of_chunk in zip(logits, copies, strict=True):
        with counted_as(tape, copies_of_chunk):
            losses.append(_cross_entropy(ctx, head, chunk_logits))
    del logits, chunk_logits
    return cat(tape, tuple(losses), (1,), "sum of losses")


def _linear_cross_entropy(ctx: Context, head: Head, hidden: Value, weights: Weights) -> Value:
    """Replay LinearCrossEntropyLoss: for each chunk of tokens the logits, their fp32 copy and the loss.

    Autograd keeps what the cross entropy saves. A chunk's logits die before the next chunk's exist. Unmasked tokens are
    selected first: a copy of the hidden states, while the recipe still refers to the originals.
    """
    tape = ctx.tape
    selected = copy(tape, hidden, "index_select")
    losses = []
    for chunk, copies_of_chunk in zip(_chunks(ctx, head, selected), _copies(head), strict=True):
        with counted_as(tape, copies_of_chunk):
            chunk_logits = linear(tape, chunk, weights, "output")
            losses.append(_cross_entropy(ctx, head, chunk_logits))
            del chunk_logits
    del hidden
    return cat(tape, tuple(losses), (1,), "sum of losses")


def _chunks(ctx: Context, head: Head, hidden: Value) -> tuple[Value, ...]:
    """Split the hidden states [tokens, hidden] into the chunks that are replayed."""
    rows = ceil_div(ctx.tokens, head.loss.chunks)
    return tuple(ctx.tape.views(hidden, *(((rows, ctx.hidden),) * len(_copies(head)))))


def _copies(head: Head) -> list[int]:
    """Return for how many equal chunks each replayed chunk counts."""
    return [copies for _, copies in in_pieces(head.loss.chunks, 1)]


def _cross_entropy(ctx: Context, head: Head, piece: Value) -> Value:
    if head.loss_is_compiled:
        return compiled_cross_entropy(ctx.tape, piece)
    return cross_entropy(ctx.tape, piece, upcast=True)


def capped_attention(ctx: Context, attention: Attention, q: Value, k: Value, v: Value) -> Value:
    """Run Gemma 2's attention with capped scores operator by operator, as no fused kernel computes the cap.

    ``q``, ``k``, ``v``: [batch, heads, sequence, head_dim], transposed views, so that products copy them if there are
    several sequences. Scores are [batch, heads, sequence, sequence]; the fp32 mask promotes them to fp32.
    """
    tape = ctx.tape
    batch, heads, sequence, head_dim = q.shape
    not_contiguous = batch > 1 and heads > 1
    q = scale_in_place(tape, q, "attention scaling")
    scores = kernels.batched(
        tape,
        q,
        k,
        (batch, heads, sequence, sequence),
        "attention scores",
        copied=(not_contiguous, not_contiguous),
    )
    masks = _masks(ctx, windowed=attention.window is not None)
    scores = scale(tape, scores, "softcap")  # cap * tanh(scores / cap)
    scores = unary(tape, scores, "tanh")
    scores = scale(tape, scores, "softcap")
    scores = shift(tape, scores, "attention mask", "fp32")
    scores = cast(tape, kernels.softmax(tape, scores), q.dtype, "attention probabilities")
    out = kernels.batched(
        tape, scores, v, (batch, heads, sequence, head_dim), "attention output", copied=(False, not_contiguous)
    )
    del scores
    out = copy(tape, out, "contiguous")
    del masks
    return out


def _masks(ctx: Context, *, windowed: bool) -> list[Storage]:
    """Make the masks [sequence, sequence] that variables hold to the end: one in fp32, or three with a window."""
    tape, shape = ctx.tape, (ctx.sequence, ctx.sequence)
    lower = tape.new(shape, "bool", "attention mask")
    upper = tape.new(shape, "bool", "attention mask")
    mask = tape.new(shape, "fp32", "attention mask")
    del lower, upper
    if not windowed:
        return [mask]
    ones = tape.new(shape, "fp32", "ones")
    above = tape.new(shape, "fp32", "triu")
    below = tape.new(shape, "fp32", "tril")
    window = tape.new(shape, "fp32", "sliding mask")
    del above, below
    is_masked = tape.new(shape, "bool", "sliding mask")
    window_mask = tape.new(shape, "fp32", "attention mask")
    del is_masked, mask
    return [ones, window, window_mask]


def rotary_tables(architecture: Architecture, setting: Setting) -> int:
    """Rows are picked from the model's table: a forward makes none."""
    return 0


def rotary_caches(architecture: Architecture, sequence: int, layers: int, *, adapted: bool) -> int:
    """Buffers of the rotary modules, whatever a step's length is."""
    return tables(architecture, layers, adapted=adapted) * table_bytes(architecture, sequence)
