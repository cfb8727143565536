"""Cross entropy and its cheaper relatives.

Sources: transformers 5.23 loss/loss_utils.py (logits.float(), then F.cross_entropy); ATen log_softmax and nll_loss.
"""

from __future__ import annotations

from memcheck.autograd.elementwise import cast, copy
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Parameter, Tape, Value


def cross_entropy(
    tape: Tape, logits: Value, *, upcast: bool, parallel: bool = False, copied: bool = False, in_place: bool = False
) -> Value:
    """``F.cross_entropy(logits.float())``: keeps the log-probabilities; backward makes two more tensors of their size.

    The fp32 copy lives until the function returns. ``parallel``: DTensor's loss_parallel on a vocabulary shard.
    ``copied``: it is taken of a copy of the logits without the last token's. ``in_place``: one kernel.
    """
    wide = widened(tape, logits, upcast=upcast)
    del logits
    rows = copy(tape, wide, "shifted logits") if copied else wide
    if in_place:
        from memcheck.autograd.fused_losses import in_place as kernel

        return kernel(tape, rows)
    if copied:
        log_probabilities = log_softmax(tape, rows, parallel=parallel)
        del rows
        return nll_loss(tape, log_probabilities)
    del rows
    log_probabilities = log_softmax(tape, wide, parallel=parallel)
    return nll_loss(tape, log_probabilities)


def widened(tape: Tape, logits: Value, *, upcast: bool) -> Value:
    """What the loss is taken of: ``logits.float()``, which autocast's list of fp32 operators makes, too."""
    return cast(tape, logits, "fp32", "logits.float()") if upcast or tape.autocast else logits


def log_softmax(tape: Tape, x: Value, *, parallel: bool = False) -> Value:
    """``F.log_softmax(x, -1)``: keeps its result. ``parallel``: of a vocabulary shard, in pieces."""
    if parallel:
        from memcheck.autograd.fused_losses import log_softmax_in_pieces

        return log_softmax_in_pieces(tape, x)
    shape, dtype = x.shape, x.dtype
    out = tape.value(shape, dtype, "log_softmax")
    return operator(tape, out, x, "log_softmax backward", saves=(out,))


def nll_loss(tape: Tape, log_probabilities: Value) -> Value:
    """``F.nll_loss`` with a mean: keeps the log-probabilities, whose gradient is as large as they are."""
    out = tape.value((1,), "fp32", "loss")
    return operator(tape, out, log_probabilities, "nll_loss backward", saves=(log_probabilities,))


def compiled_cross_entropy(tape: Tape, logits: Value) -> Value:
    """Cross-entropy under torch.compile."""
    from memcheck.autograd.fused_losses import compiled_cross_entropy as kernel

    return kernel(tape, logits)


def fused_linear(tape: Tape, x: Value, weight: Parameter) -> Value:
    """Head and loss in Liger's kernel."""
    from memcheck.autograd.fused_losses import fused_linear as kernel

    return kernel(tape, x, weight)
