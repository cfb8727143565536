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
"""Tokens whose entropy is computed at once (entropy_from_logits, chunk_size)."""
TILE_TOKENS, TILE_VOCABULARY = 4096, 32768
"""A tile of the fused head's logits (TOKEN_CHUNK_SIZE, _CHUNKED_LOGPROB_CHUNK_SIZE)."""
STATISTICS = 7
"""Numbers in fp32 that the fused head keeps of each token while it runs."""


def selective_log_softmax(tape: Tape, logits: Value) -> Value:
    """Log-probabilities [rows, tokens] of the labels, of logits [rows, tokens, vocabulary].

    Of 16-bit logits each row's log_softmax is kept. Of fp32 logits each row's logsumexp is taken, which keeps the
    logits themselves and makes one more row for a moment. Either way the rows are views (``zip(logits, index)``), whose
    gradients wait side by side until they are stacked.
    """
    rows, tokens, vocabulary = logits.shape
    labels = tape.new((rows, tokens), "int64", "labels")
    wide = logits.dtype == "fp32"
    found = [gather_last(tape, logits, labels, (rows, tokens))] if wide else []
    alike = [copies for _, copies in in_pieces(rows, 1)]
    parts = tape.views(logits, *(((tokens, vocabulary),) * len(alike)))
    del logits
    log_probabilities: Value | None = None  # `row_logps`, a variable until the function returns
    for copies in alike:
        part = parts.pop(0)
        with counted_as(tape, copies):
            if wide:
                found.append(logsumexp(tape, part))
            else:
                log_probabilities = log_softmax(tape, part)
                found.append(gather_last(tape, log_probabilities, labels, (tokens,)))
            if copies > 1:  # one of them at a time is what the variable holds: the later pieces have it
                log_probabilities = None
        del part
    out = cat(tape, tuple(found), (rows, tokens), "per-token log-probabilities")
    del log_probabilities
    return out


def logsumexp(tape: Tape, x: Value, *, first: bool = False) -> Value:
    """``torch.logsumexp(x, -1)``, or over the ``first`` dimension: keeps x.

    Its backward is ``grad * (x - result).exp()`` in one C++ expression.
    """
    shape, dtype = x.shape, x.dtype
    exponent = tape.new(shape, dtype, "logsumexp")
    out = tape.value(shape[1:] if first else shape[:-1], dtype, "logsumexp")
    del exponent
    return operator(
        tape, out, x, "logsumexp backward", saves=(x, out), temporaries=[(shape, dtype, "logsumexp backward")] * 2
    )


def entropies(tape: Tape, tokens: int, vocabulary: int, dtype: str) -> None:
    """``entropy_from_logits`` of logits that are there: ``-(exp(logps) * logps).sum(-1)``, some tokens at a time."""
    chunk = (min(tokens, ENTROPY_ROWS), vocabulary)
    log_probabilities = tape.new(chunk, dtype, "log_softmax of a chunk")
    exponent = tape.new(chunk, dtype, "exp of a chunk")
    product = tape.new(chunk, dtype, "entropy of a chunk")
    del log_probabilities, exponent, product


def fused_log_probabilities(
    tape: Tape, box: list[Value], weight: Parameter, bias: Parameter | None, scored: int, compute: str
) -> Value:
    """TRL's fused head: log-probabilities of ``scored`` tokens from hidden states [tokens, hidden] and the weight.

    ``box``: holds the only reference to the hidden states.

    No logits exist: forward and backward go over tiles of them. Backward sums the gradients of hidden states and weight
    in fp32 and casts them at its end.
    """
    h = box.pop()
    hidden, vocabulary = h.shape[-1], weight.shape[0]
    h = slices(tape, h, h.shape)[0]  # `last_hidden_state[:, :-1]`
    where = tape.new((scored, 2), "int64", "scored tokens")
    mine = index(tape, h, where, (scored, hidden), "hidden_states[mask]")
    del h
    shape, x_dtype = mine.shape, mine.dtype
    statistics = tape.new((STATISTICS, scored), "fp32", "running sums")
    tile = tape.new((min(scored, TILE_TOKENS), TILE_VOCABULARY), compute, "tile of logits")
    pieces = _narrow_pieces(tape, shape, x_dtype, (vocabulary, weight.dtype), compute)
    del tile, pieces, statistics
    labels = tape.new((scored,), "int64", "labels")
    out = tape.value((scored,), "fp32", "log-probabilities")
    log_z = tape.new((scored,), "fp32", "log of the sum")
    wants, trained = mine.origin is not None, weight.requires_grad
    kept = (mine.storage, labels, log_z)
    w_shape, w_dtype = weight.shape, weight.dtype
    b_shape = bias.shape if bias is not None else None
    b_trained = bias is not None and bias.requires_grad

    def run(grad: Storage) -> list[Storage | None]:
        wide_x = tape.new(shape, "fp32", "hidden gradient in fp32") if wants else None
        wide_w = tape.new(w_shape, "fp32", "head gradient in fp32") if trained else None
        tile = tape.new((min(scored, TILE_TOKENS), TILE_VOCABULARY), compute, "tile of logits")
        pieces = _narrow_pieces(tape, shape, x_dtype, (vocabulary, w_dtype), compute)
        if vocabulary > TILE_VOCABULARY:  # `w_chunk`, a variable until the next one is made
            another = _narrow_pieces(tape, shape, compute, (vocabulary, w_dtype), compute)
            del another
        gx = wide_x if wide_x is None or x_dtype == "fp32" else tape.new(shape, x_dtype, "hidden gradient")
        gw = wide_w if wide_w is None or w_dtype == "fp32" else tape.new(w_shape, w_dtype, "head gradient")
        gb = tape.new(b_shape, w_dtype, "head bias gradient") if b_trained and b_shape else None
        del wide_x, wide_w, tile, pieces  # variables to the end
        return [gx, gw, gb] if b_shape else [gx, gw]

    leaves = tuple([tape.parameter(p) for p in (weight, bias) if p is not None])
    return tape.record(out, (mine, *leaves), run, saves=kept)


def _narrow_pieces(
    tape: Tape, shape: tuple[int, ...], dtype: str, weight: tuple[int, str], compute: str
) -> list[Storage]:
    """Copies of the tile's rows and columns in the dtype of the product, where they have another one."""
    (tokens, hidden), (vocabulary, stored) = shape, weight
    found = []
    if ITEM_BYTES[dtype] != ITEM_BYTES[compute]:
        found.append(tape.new((min(tokens, TILE_TOKENS), hidden), compute, "hidden states of a tile"))
    if ITEM_BYTES[stored] != ITEM_BYTES[compute]:
        found.append(tape.new((min(vocabulary, TILE_VOCABULARY), hidden), compute, "head of a tile"))
    return found
