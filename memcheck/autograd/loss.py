"""Cross entropy and its cheaper relatives.

Sources: transformers 5.23 loss/loss_utils.py (logits.float(), then F.cross_entropy); ATen log_softmax and nll_loss;
Liger-Kernel ops/fused_linear_cross_entropy.py; DTensor's loss_parallel.
"""

from __future__ import annotations

from memcheck.autograd.elementwise import cast, cast_weight, copy, unary
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Parameter, Storage, Tape, Value


def cross_entropy(
    tape: Tape, logits: Value, *, upcast: bool, parallel: bool = False, copied: bool = False, in_place: bool = False
) -> Value:
    """Compute ``F.cross_entropy(logits.float())`` of logits [tokens, vocabulary].

    It saves the log-probabilities; backward makes two more tensors of their size. The fp32 copy of the logits lives
    until the function returns. ``parallel``: DTensor's loss_parallel on a vocabulary shard. ``copied``: the loss reads
    a shifted copy without the last token's logits. ``in_place``: one kernel writes the gradient over the logits.
    """
    wide = widened(tape, logits, upcast=upcast)
    del logits
    rows = copy(tape, wide, "shifted logits") if copied else wide
    if in_place:
        return cross_entropy_in_place(tape, rows)
    if copied:
        log_probabilities = log_softmax(tape, rows, parallel=parallel)
        del rows
        return nll_loss(tape, log_probabilities)
    del rows
    log_probabilities = log_softmax(tape, wide, parallel=parallel)
    return nll_loss(tape, log_probabilities)


def widened(tape: Tape, logits: Value, *, upcast: bool) -> Value:
    """Return ``logits.float()`` where the code or autocast's list of fp32 operators casts them, else the logits."""
    return cast(tape, logits, "fp32", "logits.float()") if upcast or tape.autocast else logits


def log_softmax(tape: Tape, x: Value, *, parallel: bool = False) -> Value:
    """Compute ``F.log_softmax(x, -1)``: keeps its result. ``parallel``: of a vocabulary shard, in pieces."""
    if parallel:
        return log_softmax_in_pieces(tape, x)
    return unary(tape, x, "log_softmax")


def nll_loss(tape: Tape, log_probabilities: Value) -> Value:
    """Compute ``F.nll_loss`` with a mean: keeps the log-probabilities, whose gradient is as large as they are."""
    out = tape.value((1,), "fp32", "loss")
    return operator(tape, out, log_probabilities, "nll_loss backward", saves=(log_probabilities,))


def cross_entropy_in_place(tape: Tape, logits: Value) -> Value:
    """Compute cross entropy with one kernel that writes the gradient over the logits.

    It saves the logits and an fp32 log-sum-exp per token; neither direction makes another tensor of the logits' size
    (Liger-Kernel ops/cross_entropy.py; unsloth kernels/cross_entropy_loss.py).
    """
    statistics = tape.new((logits.shape[0],), "fp32", "log of the sum")
    out = tape.value((1,), "fp32", "loss")
    kept = logits.storage
    return tape.record(out, (logits,), lambda grad: [kept], saves=(kept, statistics))


def compiled_cross_entropy(tape: Tape, logits: Value) -> Value:
    """Compute cross-entropy under torch.compile; save the logits in their own dtype, each row's maximum and log of its
    sum.
    """
    rows = (logits.shape[0], 1)
    statistics = (tape.new(rows, "fp32", "amax"), tape.new(rows, "fp32", "log of the sum"))
    return operator(tape, tape.value((1,), "fp32", "loss"), logits, "loss backward", saves=(logits, *statistics))


def fused_linear_chunk(tokens: int, vocabulary: int, hidden: int) -> int:
    """Return the tokens per chunk of Liger's kernel: the next power of two of tokens / ceil(vocabulary / hidden)."""
    pieces = -(-vocabulary // hidden)
    return int(1 << max(0, (-(-tokens // pieces) - 1).bit_length()))


def fused_linear(tape: Tape, x: Value, weight: Parameter) -> Value:
    """Compute Liger's fused linear cross entropy of hidden states [tokens, hidden] and a head [vocabulary, hidden].

    The forward already computes the gradients, one chunk of logits at a time, and saves dX and dW. Adding a chunk's dW
    needs one more tensor of its size. Autocast is active inside: it casts the transposed weight, which is no leaf, for
    every chunk, and the weight itself once if it is trained.
    """
    tokens, hidden = x.shape[0], x.shape[-1]
    vocabulary = weight.shape[0]
    chunk = min(tokens, fused_linear_chunk(tokens, vocabulary, hidden))
    product_dtype = tape.autocast or x.dtype
    casts = weight.dtype != product_dtype and tape.autocast is not None
    grad_x = tape.new(x.shape, x.dtype, "dX")
    grad_weight = tape.new(weight.shape, weight.dtype, "dW") if weight.requires_grad else None
    losses = tape.new((tokens,), "fp32", "loss per token")
    logits = None
    for _ in range(min(2, -(-tokens // chunk))):  # the variable holds a chunk's logits until it is assigned the next's
        transposed = tape.new(weight.shape, product_dtype, "autocast copy of weight.t()") if casts else None
        narrow = tape.new((chunk, hidden), product_dtype, "autocast input") if x.dtype != product_dtype else None
        next_logits = tape.new((chunk, vocabulary), product_dtype, "logits of a chunk")
        del transposed, narrow
        logits = next_logits
        del next_logits
        copied = cast_weight(tape, tape.parameter(weight), product_dtype) if casts else None
        chunk_gradient = tape.new((chunk, hidden), product_dtype, "dX of a chunk")
        del chunk_gradient, copied
        if grad_weight is not None:  # grad_weight += chunk's logits gradient.t() @ chunk's input
            chunk_gradient = tape.new(weight.shape, product_dtype, "dW of a chunk")
            del chunk_gradient
    del logits
    out = tape.value((1,), "fp32", "loss")
    del losses
    saved = (grad_x if x.origin is not None else None, grad_weight)

    def run(grad: Storage) -> list[Storage | None]:
        return list(saved)  # multiplied by the loss's gradient in place

    return tape.record(out, (x, tape.parameter(weight)), run, saves=saved)


def log_softmax_in_pieces(tape: Tape, x: Value) -> Value:
    """Compute log_softmax of a vocabulary shard under DTensor's ``loss_parallel``, operator by operator.

    Forward subtracts the maximum of all ranks, and sums an exp; backward makes an exp and the gradient
    (torch.distributed.tensor.parallel.loss).
    """
    shape, dtype = x.shape, x.dtype
    shifted = tape.new(shape, dtype, "shifted logits")
    exponent = tape.new(shape, dtype, "exp")
    del exponent
    out = tape.value(shape, dtype, "log_softmax")
    del shifted
    return operator(tape, out, x, "loss_parallel backward", saves=(out,), temporaries=[(shape, dtype, "exp")])
