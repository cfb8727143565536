"""Log-probabilities of given tokens, the way TRL takes them: row by row, or from a fused head.

Sources: TRL 0.29.1 trainer/utils.py (selective_log_softmax, entropy_from_logits); TRL 1.16 kernels/chunked_logprob.py
(ChunkedLogProbFunction); torch/csrc/autograd/FunctionsManual.cpp (logsumexp_backward); aten ReduceOps.cpp (logsumexp).
"""

from __future__ import annotations

from memcheck.autograd.elementwise import cat
from memcheck.autograd.indexing import gather_last, index, slices
from memcheck.autograd.loss import log_softmax
from memcheck.autograd.operator import operator
from memcheck.autograd.pieces import counted_as, in_pieces
from memcheck.autograd.tensor import ITEM_BYTES, Parameter, Storage, Tape, Value

ENTROPY_ROWS = 128
"""Rows of logits whose entropy is computed at once (entropy_from_logits, chunk_size)."""
TILE_TOKENS, TILE_VOCABULARY = 4096, 32768
"""A tile of the fused head's logits (TOKEN_CHUNK_SIZE, _CHUNKED_LOGPROB_CHUNK_SIZE)."""
STATISTICS = 7
"""Numbers in fp32 that the fused head keeps of each token while it runs."""


def selective_log_softmax(tape: Tape, logits: Value) -> Value:
    """Compute the log-probability of each label (TRL's selective_log_softmax).

    ``logits``: [rows, tokens, vocabulary]; the result is [rows, tokens]. TRL goes row by row. With 16-bit logits it
    saves each row's log_softmax. With fp32 logits it takes each row's logsumexp, which saves the logits and makes one
    more row for a moment. Rows are views (``zip(logits, index)``): their gradients are all live until they are stacked.
    """
    rows, tokens, vocabulary = logits.shape
    labels = tape.new((rows, tokens), "int64", "labels")
    is_fp32 = logits.dtype == "fp32"
    scores = [gather_last(tape, logits, labels, (rows, tokens))] if is_fp32 else []
    # equal rows in the middle are traced once, and their allocations counted as often as there are such rows
    row_copies = [copies for _, copies in in_pieces(rows, 1)]
    row_views = tape.views(logits, *(((tokens, vocabulary),) * len(row_copies)))
    del logits
    log_probabilities: Value | None = None  # `row_logps`, a variable until the function returns
    for copies in row_copies:
        row = row_views.pop(0)
        with counted_as(tape, copies):
            if is_fp32:
                scores.append(logsumexp(tape, row))
            else:
                log_probabilities = log_softmax(tape, row)
                scores.append(gather_last(tape, log_probabilities, labels, (tokens,)))
            if copies > 1:  # the variable refers to only one row's at a time, which the last row accounts for
                log_probabilities = None
        del row
    out = cat(tape, tuple(scores), (rows, tokens), "per-token log-probabilities")
    del log_probabilities
    return out


def logsumexp(tape: Tape, x: Value, *, first: bool = False) -> Value:
    """Compute ``torch.logsumexp(x, -1)``, which saves x and its result. ``first``: over the first dimension instead.

    Backward is ``grad * (x - result).exp()`` in one C++ expression: two tensors of the shape of x live in it.
    """
    shape, dtype = x.shape, x.dtype
    exponent = tape.new(shape, dtype, "logsumexp")
    out = tape.value(shape[1:] if first else shape[:-1], dtype, "logsumexp")
    del exponent
    return operator(
        tape, out, x, "logsumexp backward", saves=(x, out), temporaries=[(shape, dtype, "logsumexp backward")] * 2
    )


def entropies(tape: Tape, tokens: int, vocabulary: int, dtype: str) -> None:
    """Run TRL's ``entropy_from_logits``, a metric without gradients, on logits whose bytes are counted already.

    It computes ``-(exp(logps) * logps).sum(-1)`` on ``ENTROPY_ROWS`` tokens at a time, with three temporaries each.
    """
    chunk = (min(tokens, ENTROPY_ROWS), vocabulary)
    log_probabilities = tape.new(chunk, dtype, "log_softmax of a chunk")
    exponent = tape.new(chunk, dtype, "exp of a chunk")
    product = tape.new(chunk, dtype, "entropy of a chunk")
    del log_probabilities, exponent, product


def fused_log_probabilities(
    tape: Tape, box: list[Value], weight: Parameter, bias: Parameter | None, scored: int, compute: str
) -> Value:
    """Run TRL's fused head: log-probabilities of the scored tokens from hidden states and the head's weight.

    ``box``: a list with the hidden states, [tokens, hidden], and the only reference to them. ``weight``: [vocabulary,
    hidden]. ``scored``: number of tokens of completions. ``compute``: dtype of the products.

    Whole logits never exist: forward and backward go over tiles of them. Backward sums the gradients of hidden states
    and weight in fp32 and casts them at its end. Source: TRL 1.16 kernels/chunked_logprob.py.
    """
    hidden_states = box.pop()
    hidden, vocabulary = hidden_states.shape[-1], weight.shape[0]
    hidden_states = slices(tape, hidden_states, hidden_states.shape)[0]  # `last_hidden_state[:, :-1]`
    scored_indices = tape.new((scored, 2), "int64", "scored tokens")
    scored_states = index(tape, hidden_states, scored_indices, (scored, hidden), "hidden_states[mask]")
    del hidden_states
    shape, x_dtype = scored_states.shape, scored_states.dtype
    statistics = tape.new((STATISTICS, scored), "fp32", "running sums")
    tile = tape.new((min(scored, TILE_TOKENS), TILE_VOCABULARY), compute, "tile of logits")
    pieces = _narrow_pieces(tape, shape, x_dtype, (vocabulary, weight.dtype), compute)
    del tile, pieces, statistics
    labels = tape.new((scored,), "int64", "labels")
    out = tape.value((scored,), "fp32", "log-probabilities")
    log_z = tape.new((scored,), "fp32", "log of the sum")
    needs_grad_x, trained = scored_states.origin is not None, weight.requires_grad
    kept = (scored_states.storage, labels, log_z)
    w_shape, w_dtype = weight.shape, weight.dtype
    b_shape = bias.shape if bias is not None else None
    b_trained = bias is not None and bias.requires_grad

    def run(grad: Storage) -> list[Storage | None]:
        """Return the gradients of hidden states, weight and bias, summed tile by tile in fp32."""
        grad_x_fp32 = tape.new(shape, "fp32", "hidden gradient in fp32") if needs_grad_x else None
        grad_w_fp32 = tape.new(w_shape, "fp32", "head gradient in fp32") if trained else None
        tile = tape.new((min(scored, TILE_TOKENS), TILE_VOCABULARY), compute, "tile of logits")
        pieces = _narrow_pieces(tape, shape, x_dtype, (vocabulary, w_dtype), compute)
        if vocabulary > TILE_VOCABULARY:  # `w_chunk`, a variable until the next one is made
            another = _narrow_pieces(tape, shape, compute, (vocabulary, w_dtype), compute)
            del another
        grad_x, grad_w = grad_x_fp32, grad_w_fp32
        if grad_x is not None and x_dtype != "fp32":
            grad_x = tape.new(shape, x_dtype, "hidden gradient")
        if grad_w is not None and w_dtype != "fp32":
            grad_w = tape.new(w_shape, w_dtype, "head gradient")
        grad_b = tape.new(b_shape, w_dtype, "head bias gradient") if b_trained and b_shape else None
        del grad_x_fp32, grad_w_fp32, tile, pieces  # local variables of TRL's backward, which live to its end
        return [grad_x, grad_w, grad_b] if b_shape else [grad_x, grad_w]

    leaves = tuple([tape.parameter(parameter) for parameter in (weight, bias) if parameter is not None])
    return tape.record(out, (scored_states, *leaves), run, saves=kept)


def _narrow_pieces(
    tape: Tape, shape: tuple[int, ...], dtype: str, weight: tuple[int, str], compute: str
) -> list[Storage]:
    """Allocate copies, in the dtype of the product, of the operands of one tile: its hidden states and its weight rows.

    ``shape``, ``dtype``: of all hidden states, [tokens, hidden]. ``weight``: the head's vocabulary and dtype.
    ``compute``: dtype of the product. An operand that has this dtype is not copied.
    """
    (tokens, hidden), (vocabulary, weight_dtype) = shape, weight
    copies = []
    if ITEM_BYTES[dtype] != ITEM_BYTES[compute]:
        copies.append(tape.new((min(tokens, TILE_TOKENS), hidden), compute, "hidden states of a tile"))
    if ITEM_BYTES[weight_dtype] != ITEM_BYTES[compute]:
        copies.append(tape.new((min(vocabulary, TILE_VOCABULARY), hidden), compute, "head of a tile"))
    return copies
