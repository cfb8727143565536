"""Cross entropy and its cheaper relatives, and log-probabilities of given tokens, whole or piece by piece."""

from __future__ import annotations

from memcheck.autograd.operator import cast, cast_weight, cat, copy, gather_last, index, operator, slices, unary
from memcheck.autograd.tensor import ITEM_BYTES, Parameter, Storage, Tape, Value, ceil_div
from memcheck.record import Record


def cross_entropy(
    tape: Tape, logits: Value, *, upcast: bool, parallel: bool = False, copied: bool = False, in_place: bool = False
) -> Value:
    """Compute ``F.cross_entropy(logits.float())`` of logits [tokens, vocabulary].

    It saves the log-probabilities; backward makes two more tensors of their size. The fp32 copy of the logits lives
    until the function returns. ``upcast``: the code casts the logits, also without autocast. ``parallel``: DTensor's
    loss_parallel on a vocabulary shard. ``copied``: the loss reads a shifted copy without the last token's logits.
    ``in_place``: one kernel writes the gradient over the logits.
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
    pieces = ceil_div(vocabulary, hidden)
    return int(1 << max(0, (ceil_div(tokens, pieces) - 1).bit_length()))


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

    def chunk_logits() -> Storage:
        """Compute the logits of a chunk, [chunk, vocabulary]; copies of its operands die with the product."""
        transposed = tape.new(weight.shape, product_dtype, "autocast copy of weight.t()") if casts else None
        narrow = tape.new((chunk, hidden), product_dtype, "autocast input") if x.dtype != product_dtype else None
        logits = tape.new((chunk, vocabulary), product_dtype, "logits of a chunk")
        del transposed, narrow
        return logits

    logits = None
    for _ in range(min(2, ceil_div(tokens, chunk))):  # a third chunk adds nothing
        logits = chunk_logits()  # the last chunk's logits live until this assignment
        copied = cast_weight(tape, tape.parameter(weight), product_dtype) if casts else None
        chunk_gradient = tape.new((chunk, hidden), product_dtype, "dX of a chunk")
        del chunk_gradient, copied
        if grad_weight is not None:  # grad_weight += chunk's logits gradient.t() @ chunk's input
            chunk_gradient = tape.new(weight.shape, product_dtype, "dW of a chunk")
            del chunk_gradient
    del logits
    out = tape.value((1,), "fp32", "loss")
    del losses
    saved = (grad_x if x.needs_grad else None, grad_weight)

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


FIRST = 3
"""Pieces at the start that are replayed one by one: the first one casts weights for all of them."""
LAST = 4
"""Pieces at the end that are replayed one by one. Backward starts there and adds up a weight's first two gradients in
another way than later ones. The last piece may be shorter."""


class Pieces(Record):
    """Consecutive equal pieces of a tensor's dimension."""

    size: int
    """Rows per piece."""
    copies: int
    """Number of pieces."""


def in_pieces(length: int, size: int) -> list[Pieces]:
    """Cut ``length`` rows into pieces of ``size`` rows, the last of which may be shorter.

    Pieces near both ends are entries of their own, those between them one entry with a count.
    """
    count = ceil_div(length, size)
    middle = count - FIRST - LAST
    if middle < 2:
        return [Pieces(min(size, length - at), 1) for at in range(0, length, size)]
    front, back = [Pieces(size, 1)] * FIRST, [Pieces(size, 1)] * (LAST - 1)
    return [*front, Pieces(size, middle), *back, Pieces(length - (count - 1) * size, 1)]


class counted_as:  # noqa: N801 - reads as a function
    """A context manager: each allocation in it counts ``copies`` times, as one of ``copies`` equal pieces of a tensor.

    With more than one copy its moments are not considered for the peak.
    """

    __slots__ = ("_before", "_now", "_tape")

    def __init__(self, tape: Tape, copies: int) -> None:
        self._tape, self._before = tape, (tape.copies, tape.ignores_peaks)
        self._now = copies, copies > 1

    def __enter__(self) -> None:
        """Set the tape's count of copies."""
        self._tape.copies, self._tape.ignores_peaks = self._now

    def __exit__(self, *_: object) -> None:
        """Restore the tape's count of copies and its silent flag from before the block."""
        self._tape.copies, self._tape.ignores_peaks = self._before


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


def logsumexp(tape: Tape, x: Value, *, over_first_dim: bool = False) -> Value:
    """Compute ``torch.logsumexp(x, -1)``, which saves x and its result. ``over_first_dim``: over dimension 0 instead.

    Backward is ``grad * (x - result).exp()`` in one C++ expression: two tensors of the shape of x live in it.
    """
    shape, dtype = x.shape, x.dtype
    exponent = tape.new(shape, dtype, "logsumexp")
    out = tape.value(shape[1:] if over_first_dim else shape[:-1], dtype, "logsumexp")
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
    tile_shape = (min(scored, TILE_TOKENS), TILE_VOCABULARY)
    # the forward goes over tiles of logits; the largest tile is the one that counts
    statistics = tape.new((STATISTICS, scored), "fp32", "running sums")
    tile = tape.new(tile_shape, compute, "tile of logits")
    operand_copies = _narrow_pieces(tape, shape, x_dtype, (vocabulary, weight.dtype), compute)
    del tile, operand_copies, statistics
    labels = tape.new((scored,), "int64", "labels")
    out = tape.value((scored,), "fp32", "log-probabilities")
    log_z = tape.new((scored,), "fp32", "log of the sum")
    needs_grad_x, trained = scored_states.needs_grad, weight.requires_grad
    kept = (scored_states.storage, labels, log_z)
    w_shape, w_dtype = weight.shape, weight.dtype

    def run(grad: Storage) -> list[Storage | None]:
        """Return the gradients of hidden states, weight and bias, summed tile by tile in fp32.

        All storages are variables of TRL's backward, and live to its end.
        """
        grad_x_fp32 = tape.new(shape, "fp32", "hidden gradient in fp32") if needs_grad_x else None
        grad_w_fp32 = tape.new(w_shape, "fp32", "head gradient in fp32") if trained else None
        tile = tape.new(tile_shape, compute, "tile of logits")
        operand_copies = _narrow_pieces(tape, shape, x_dtype, (vocabulary, w_dtype), compute)
        if vocabulary > TILE_VOCABULARY:  # the variable `w_chunk` holds one tile's weight until the next one is made
            next_weight_copy = _narrow_pieces(tape, shape, compute, (vocabulary, w_dtype), compute)
            del next_weight_copy
        grad_x, grad_w = grad_x_fp32, grad_w_fp32
        if grad_x is not None and x_dtype != "fp32":
            grad_x = tape.new(shape, x_dtype, "hidden gradient")
        if grad_w is not None and w_dtype != "fp32":
            grad_w = tape.new(w_shape, w_dtype, "head gradient")
        gradients = [grad_x, grad_w]
        if bias is not None:
            gradients.append(tape.new(bias.shape, w_dtype, "head bias gradient") if bias.requires_grad else None)
        del grad_x_fp32, grad_w_fp32, tile, operand_copies
        return gradients

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
