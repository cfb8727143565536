"""torchtune's decoder layer, head and losses.

Sources: torchtune modules/{attention,feed_forward,rms_norm,position_embeddings,transformer}.py, modules/peft/lora.py,
modules/loss/ce_chunked_output_loss.py at 1814feb17, modules/loss/cross_entropy_loss.py at bd2a0fc7c. The layer is
transformers' but for its attention, which copies keys and values to every query head, and for the rotation.
"""

from __future__ import annotations

from memcheck.autograd import kernels
from memcheck.autograd.context import Context
from memcheck.autograd.curve import Forward
from memcheck.autograd.kernels import Weights, linear
from memcheck.autograd.loss import compiled_cross_entropy, counted_as, cross_entropy, in_pieces
from memcheck.autograd.operator import add, cat, copy, repeat_kv
from memcheck.autograd.tensor import Value, ceil_div
from memcheck.errors import UnsupportedError
from memcheck.frameworks.torch.compiled import compiled_block, is_traced
from memcheck.frameworks.torchtune.norms import normalise as norm
from memcheck.frameworks.torchtune.rotary import rotate
from memcheck.frameworks.transformers.head import Head, head_unit
from memcheck.frameworks.transformers.layers import block_parts, feed_forward
from memcheck.models.parameters import linear_tensors
from memcheck.models.types import Attention, Block, ParameterTensor

__all__ = ["block", "head_unit", "loss_in_pieces", "norm", "recomputing"]


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
    tape, tensors = ctx.tape, linear_tensors(attention.tensors)
    if attention.fused_qkv:  # an architecture as transformers has it
        fused_matrix = tensors[0]
        projection_rows = (
            attention.heads * attention.head_dim,
            attention.kv_heads * attention.head_dim,
            attention.kv_heads * attention.head_dim,
        )
        projections = [fused_matrix._replace(shape=(tensor, fused_matrix.shape[1])) for tensor in projection_rows]
    else:
        projections = tensors[:3]
    q = rotate(
        ctx,
        attention,
        norm(ctx, attention.query_norm, _heads(ctx, attention, projections[0], x, attention.heads), "qk_norm"),
    )
    k, v = (_heads(ctx, attention, tensor, x, attention.kv_heads) for tensor in projections[1:])
    k = rotate(ctx, attention, norm(ctx, attention.key_norm, k, "qk_norm"))
    if attention.kv_heads != attention.heads:
        k, v = repeat_kv(tape, k, attention.heads), repeat_kv(tape, v, attention.heads)
    if attention.softcap:
        from memcheck.frameworks.torchtune.capped import capped_attention

        out = capped_attention(ctx, attention, q, k, v)
    else:
        out = kernels.flash(tape, q, k, v, attention.head_dim, label="flex attention")
    result = linear(
        tape,
        out.view(ctx.tokens, attention.heads * attention.head_dim),
        ctx.weights(tensors[-1], attention.out_bias),
        "output",
    )
    del out, q, k, v
    return result


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
    if head.compiled:
        return compiled_cross_entropy(ctx.tape, piece)
    return cross_entropy(ctx.tape, piece, upcast=True)
