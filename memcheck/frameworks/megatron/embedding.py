"""Megatron's embedding: a vocabulary-parallel table, learned positions, sequence-parallel scatter, dropout.

Sources: Megatron-core ``models/common/embeddings/language_model_embedding.py``, ``tensor_parallel/layers.py``
(VocabParallelEmbedding), ``tensor_parallel/mappings.py``.
"""

from __future__ import annotations

from collections.abc import Callable

from memcheck.autograd import Tape, Value, backward
from memcheck.autograd.context import Context, Setting
from memcheck.autograd.curve import Curve, curve_of, end_forward, peak_of
from memcheck.autograd.operator import GRAD_UNCHANGED, copy, dropout, operator
from memcheck.autograd.tensor import Parameter, Storage, ceil_div
from memcheck.frameworks.megatron.attention import hidden_dropout
from memcheck.frameworks.megatron.linear import is_sequence_parallel
from memcheck.record import Record


class MegatronEmbedding(Record):
    """What the first unit consists of. Hashable."""

    vocab: int
    """Padded vocabulary, all tensor ranks together."""
    positions: int = 0
    """Rows of a learned position table; 0: none."""
    dropout: float = 0.0
    tied: bool = False
    """The output layer of the same rank uses the table too."""
    trained: bool = True
    """The tables get gradients."""
    output_lives_to_forward_end: bool = False
    """Whether GPTModel.forward holds the embedding's output to its end (``decoder_input``); no backward keeps it."""


def megatron_embedding_curve(
    embedding: MegatronEmbedding,
    setting: Setting,
    forward: Callable[[Context, MegatronEmbedding], Value] | None = None,
    *,
    inventory: bool = False,
) -> Curve:
    """Run the embedding's forward and backward on a tape, and return its memory curve in bytes.

    The output counts with the first layer, so that ``saved_bytes`` is what the embedding saves in addition to it.
    ``forward``: another framework's forward in place of :func:`embedding_forward`. ``inventory``: list each tensor.
    """
    tape = Tape(inventory=inventory)
    ctx = Context(tape, setting)
    output = (forward or embedding_forward)(ctx, embedding)
    forward_peak = peak_of(tape)
    output_spec = (output.shape, output.dtype)
    # `decoder_input` of GPTModel.forward holds the output to its end
    kept_output_bytes = (
        output.storage.bytes if embedding.output_lives_to_forward_end and output.storage is not None else 0
    )
    output.storage = None
    saved = end_forward(tape)
    backward(tape, output, [tape.new(*output_spec, "output gradient")] if output.needs_grad else [])
    return curve_of(tape, forward_peak, saved)._replace(autocast_cache_bytes=kept_output_bytes)


def embedding_forward(ctx: Context, embedding: MegatronEmbedding) -> Value:
    """Compute word embeddings, with learned positions if the model has any: [this rank's tokens, hidden].

    Under sequence parallelism each tensor rank has 1/tp of the tokens afterwards.
    """
    tape, setting, tp = ctx.tape, ctx.setting, ctx.tp
    scatters_tokens = is_sequence_parallel(ctx)
    # the embedding reduce-scatters by itself unless positions are added in between
    scatters_first = scatters_tokens and embedding.positions == 0
    x = _table(ctx, embedding)
    shape, dtype = x.shape, x.dtype
    if scatters_first:
        x = _scatter(ctx, _transposed(ctx, x))
    elif tp > 1:
        x = operator(tape, x, x, GRAD_UNCHANGED)  # all-reduced in place
    if embedding.positions:
        position_table = ctx.parameter("position_embeddings", (embedding.positions, setting.hidden))
        looked_up = tape.value((ctx.tokens, setting.hidden), dtype, "position embeddings")
        position = operator(tape, looked_up, tape.parameter(position_table), "embedding backward")
        summed = tape.value(shape, dtype, "word + position")
        x = operator(tape, summed, (x, position), GRAD_UNCHANGED)
        del position, looked_up, summed
    if not scatters_first:
        x = _transposed(ctx, x)
        if scatters_tokens:
            x = _split(ctx, x)
    return dropout(tape, x, hidden_dropout(ctx, embedding.dropout))


def _table(ctx: Context, embedding: MegatronEmbedding) -> Value:
    """Look up word embeddings in this rank's vocabulary shard: [tokens, hidden].

    With several tensor ranks, autograd saves the masked token ids and their mask.
    """
    tape, setting = ctx.tape, ctx.setting
    weight = Parameter(
        "word_embeddings",
        (ceil_div(embedding.vocab, ctx.tp), setting.hidden),
        setting.param_dtype,
        embedding.trained,
        has_grad=True,
    )
    ctx.register(weight)
    ids = tape.new((ctx.tokens,), "int64", "masked token ids") if ctx.tp > 1 else None
    mask = tape.new((ctx.tokens,), "bool", "token mask") if ctx.tp > 1 else None
    out = tape.value((ctx.tokens, setting.hidden), setting.compute_dtype, "word embeddings")
    shape, dtype = weight.shape, weight.dtype
    saved = (ids, mask)
    tied = embedding.tied

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: the gradient of the whole shard, which is added to the output layer's if the table is tied."""
        table = tape.new(shape, dtype, "embedding backward")
        if tied:
            # summed with the output layer's gradient, which others still reference
            summed = tape.new(shape, dtype, "add gradients")
            del table
            return [summed]
        return [table]

    return tape.record(out, (tape.parameter(weight),), run, saves=saved)


def _transposed(ctx: Context, x: Value) -> Value:
    """``embeddings.transpose(0, 1).contiguous()``: free for one sequence."""
    return copy(ctx.tape, x, "[b s h] -> [s b h]") if ctx.setting.batch > 1 else x


def _scatter(ctx: Context, x: Value) -> Value:
    tape = ctx.tape
    out = tape.value((ctx.residual_tokens, x.shape[-1]), x.dtype, "reduce-scatter embeddings")
    return operator(tape, out, x, "all-gather embedding gradient")


def _split(ctx: Context, x: Value) -> Value:
    """Compute ``scatter_to_sequence_parallel_region`` and a clone, so that the whole is not kept by a view."""
    tape = ctx.tape
    out = tape.value((ctx.residual_tokens, x.shape[-1]), x.dtype, "scatter embeddings")
    return operator(tape, out, x, "all-gather embedding gradient")
