"""Losses in one kernel: of a compiled graph, in place, and Liger's with the head (Liger-Kernel
ops/fused_linear_cross_entropy.py); and one in pieces, of a shard of the vocabulary.
"""

from __future__ import annotations

from memcheck.autograd.elementwise import cast_weight
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Parameter, Storage, Tape, Value


def in_place(tape: Tape, logits: Value) -> Value:
    """Cross entropy that keeps what it read and puts the gradient there (Liger-Kernel ops/cross_entropy.py; unsloth
    kernels/cross_entropy_loss.py).
    """
    statistics = tape.new((logits.shape[0],), "fp32", "log of the sum")
    out = tape.value((1,), "fp32", "loss")
    kept = logits.storage
    return tape.record(out, (logits,), lambda grad: [kept], saves=(kept, statistics))


def compiled_cross_entropy(tape: Tape, logits: Value) -> Value:
    """Cross-entropy under torch.compile: saves the logits as they came, and each row's maximum and log of the sum.

    Everything in between is one kernel each way: no copy in fp32 exists, and backward writes the logits' gradient only
    (the partitioner's cut: tests/frameworks/torch/compiled_blocks.json; the scatter of the labels becomes a comparison,
    torch/_inductor/fx_passes/post_grad.py, scatter_upon_const_tensor).
    """
    rows = (logits.shape[0], 1)
    statistics = (tape.new(rows, "fp32", "amax"), tape.new(rows, "fp32", "log of the sum"))
    return operator(tape, tape.value((1,), "fp32", "loss"), logits, "loss backward", saves=(logits, *statistics))


def fused_linear_chunk(tokens: int, vocabulary: int, hidden: int) -> int:
    """Tokens per chunk of Liger's kernel: next power of two of tokens / ceil(vocabulary / hidden)."""
    pieces = -(-vocabulary // hidden)
    return int(1 << max(0, (-(-tokens // pieces) - 1).bit_length()))


def fused_linear(tape: Tape, x: Value, weight: Parameter) -> Value:
    """Liger's fused linear cross entropy: gradients are made in forward, one chunk of logits at a time.

    Keeps dX and dW; adding a chunk's dW needs one more tensor of its size. Autocast goes on inside: it casts the
    transposed weight for every chunk, which is no leaf, and the weight itself once if it is trained.
    """
    tokens, hidden = x.shape[0], x.shape[-1]
    vocabulary = weight.shape[0]
    chunk = min(tokens, fused_linear_chunk(tokens, vocabulary, hidden))
    computed = tape.autocast or x.dtype
    casts = weight.dtype != computed and tape.autocast is not None
    gx = tape.new(x.shape, x.dtype, "dX")
    gw = tape.new(weight.shape, weight.dtype, "dW") if weight.requires_grad else None
    losses = tape.new((tokens,), "fp32", "loss per token")
    logits = None
    for _ in range(min(2, -(-tokens // chunk))):  # the variable holds a chunk's logits until it is assigned the next's
        turned = tape.new(weight.shape, computed, "autocast copy of weight.t()") if casts else None
        narrow = tape.new((chunk, hidden), computed, "autocast input") if x.dtype != computed else None
        following = tape.new((chunk, vocabulary), computed, "logits of a chunk")
        del turned, narrow
        logits = following
        del following
        copied = cast_weight(tape, tape.parameter(weight), computed) if casts else None
        part = tape.new((chunk, hidden), computed, "dX of a chunk")
        del part, copied
        if gw is not None:
            part = tape.new(weight.shape, computed, "dW of a chunk")
            del part
    del logits
    out = tape.value((1,), "fp32", "loss")
    del losses
    nx, nw = x.origin is not None, weight.requires_grad
    kept = (gx if nx else None, gw if nw else None)

    def run(grad: Storage) -> list[Storage | None]:
        return list(kept)

    return tape.record(out, (x, tape.parameter(weight)), run, saves=kept)


def log_softmax_in_pieces(tape: Tape, x: Value) -> Value:
    """DTensor's ``loss_parallel`` on a vocabulary shard, whose backward is an exp, a product and a difference
    (torch.distributed.tensor.parallel.loss).
    """
    shape, dtype = x.shape, x.dtype
    shifted = tape.new(shape, dtype, "shifted logits")
    exponent = tape.new(shape, dtype, "exp")
    del exponent
    out = tape.value(shape, dtype, "log_softmax")
    del shifted
    return operator(tape, out, x, "loss_parallel backward", saves=(out,), temporaries=[(shape, dtype, "exp")])
