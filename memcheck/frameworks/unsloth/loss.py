"""unsloth's losses: head and cross entropy together in pieces, or of whole logits before 2024.11.

Sources: unsloth_zoo 2026.8 ``fused_losses/cross_entropy_loss.py`` (UnslothFusedLoss, get_chunk_size); unsloth
``models/llama.py`` (_CausalLM_fast_forward), ``kernels/cross_entropy_loss.py``; accelerate ``utils/operations.py``
(ConvertOutputsToFp32).
"""

from __future__ import annotations

from math import ceil

from memcheck.autograd.context import Context
from memcheck.autograd.kernels import Weights, linear
from memcheck.autograd.loss import cross_entropy_in_place, in_pieces
from memcheck.autograd.operator import cast
from memcheck.autograd.tensor import Storage, Tape, Value, ceil_div
from memcheck.frameworks.transformers.head import Head

TARGET_BYTES = 4 * 2**30
"""What the logits of a piece may be in fp32; less where less than twice of it is free (``_get_chunk_multiplier``)."""


def pieces_of(tokens: int, vocabulary: int) -> int:
    """Return in how many pieces the tokens are scored: one, or a multiple of four."""
    share = 4 * tokens * vocabulary / TARGET_BYTES
    return 1 if share <= 1 else 4 * ceil(share / 4)


def fused_loss(ctx: Context, head: Head, hidden: Value, weights: Weights) -> Value:
    """Compute UnslothFusedLoss of ``hidden`` [tokens, hidden]: its forward computes the gradients, piece by piece of
    tokens.

    Each piece is one compiled graph: its logits stay in the head's dtype, and Inductor writes their gradient over them.
    ``weights``: of the head.
    """
    tape, weight = ctx.tape, weights.weight
    dtype, trained = weight.dtype, weight.requires_grad
    tokens, vocabulary = hidden.shape[0], weight.shape[0]
    gradient = tape.new(hidden.shape, hidden.dtype, "gradient of the hidden states")
    head_gradient = tape.new(weight.shape, dtype, "gradient of the head") if trained else None
    piece = ceil_div(tokens, pieces_of(tokens, vocabulary)) if head.loss.kind == "chunked" else tokens
    for size, _ in in_pieces(tokens, piece):
        narrow = tape.new((size, ctx.hidden), dtype, "head input") if hidden.dtype != dtype else None
        logits = tape.new((size, vocabulary), dtype, "logits of a piece")
        _capped(tape, head, logits)
        piece_gradient = tape.new((size, ctx.hidden), dtype, "gradient of a piece")
        if trained:
            part = tape.new(weight.shape, dtype, "gradient of the head, of a piece")
            del part
        del narrow, logits, piece_gradient
    out = tape.value((1,), "fp32", "loss")
    shape, kept, wide = hidden.shape, (gradient, head_gradient), hidden.dtype

    def run(grad: Storage) -> list[Storage | None]:
        """Multiply both gradients by that of the loss (``grad_inputs * scale_factor``)."""
        del grad
        scaled = tape.new(shape, wide, "scaled gradient")
        return [scaled, tape.new(weight.shape, dtype, "scaled gradient of the head") if trained else None]

    del gradient, head_gradient
    return tape.record(out, (hidden, tape.parameter(weight)), run, saves=kept)


def _capped(tape: Tape, head: Head, logits: Storage) -> None:
    """Allocate the hyperbolic tangent of capped logits, which is kept for the gradient: [tokens, vocabulary]."""
    if head.softcap:
        kept = tape.new(logits.shape, logits.dtype, "tanh of a piece")
        del kept


def whole_logits_loss(ctx: Context, head: Head, hidden: Value, weights: Weights) -> Value:
    """Compute Fast_CrossEntropyLoss of whole logits, [tokens, vocabulary], over which backward writes their gradient.

    accelerate copies the model's output to fp32 as its forward returns, and the Trainer drops it.
    """
    tape = ctx.tape
    logits = linear(tape, cast(tape, hidden, weights.weight.dtype), weights, "lm_head")
    del hidden
    loss = cross_entropy_in_place(tape, logits)
    outputs = tape.new(logits.shape, "fp32", "logits in fp32") if logits.dtype != "fp32" else None
    del outputs
    del logits
    return loss
