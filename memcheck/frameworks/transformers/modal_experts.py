"""ERNIE 4.5 VL's experts: one set for the tokens of text, another for those of pictures (modeling_ernie4_5_vl_moe.py).

Ernie4_5_VLMoeMoeBlock.forward picks the rows of each kind number by number, by a mask that is expanded to all channels,
and puts what their experts make into zeros by the same mask. A negated mask is real: a byte for each number. The places
of the numbers are listed as three int64 each (aten IndexingUtils.h, expandTensors), of a mask that is real by then
(native/cuda/Nonzero.cu); the backward of a pick, which adds to zeros, sorts them, of which six are there at once
(native/cuda/Indexing.cu, index_put_with_sort_kernel).
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import add
from memcheck.autograd.tensor import Storage, Tape, Value
from memcheck.errors import UnsupportedError
from memcheck.frameworks.transformers.mlp import mlp
from memcheck.models.types import Moe

TEXT, VISION = "mlp.text_moe.", "mlp.vision_moe."


def modal_experts(ctx: Context, m: Moe, x: Value) -> Value:
    """Shared experts, then those of each kind of token; of text alone where there are no pictures.

    Raises:
        UnsupportedError: on several ranks.
    """
    from memcheck.frameworks.transformers.moe import routed_experts, shared_mlp

    if ctx.setting.expert > 1 or ctx.tp > 1:
        message = "experts of each kind of token have no model on several ranks"
        raise UnsupportedError(message, "choose parallelism.expert: 1 and tensor: 1", "/parallelism")
    tape, seen = ctx.tape, ctx.setting.image_tokens
    tokens = x.numel // ctx.hidden
    x = x.view(tokens, ctx.hidden)  # a token alone has no dimension of tokens
    shared = mlp(ctx, shared_mlp(m), x) if m.shared_width else None
    if seen:
        final = _of_both(ctx, m, x, min(seen, tokens - 1))
    else:
        final = routed_experts(ctx, only(m, TEXT), x)
        for tensor in only(m, VISION).tensors:  # they rest
            ctx.constant(tensor)
    del x
    return add(tape, final, shared, "routed + shared") if shared is not None else final


def _of_both(ctx: Context, m: Moe, x: Value, seen: int) -> Value:
    from memcheck.frameworks.transformers.moe import routed_experts

    tape, shape = ctx.tape, x.shape
    final = Value(tape.new(shape, x.dtype, "zeros"), shape, x.dtype)
    logits = tape.new((shape[0], m.experts), "fp32", "router logits")
    for part, rows in ((TEXT, shape[0] - seen), (VISION, seen)):
        picked = _picked(tape, x, rows, negated=part == TEXT)
        made = routed_experts(ctx, only(m, part), picked)
        del picked
        final = _put(tape, final, made, negated=part == TEXT)
        del made
    del logits
    return final


def only(m: Moe, part: str) -> Moe:
    """The experts of one kind of token as a mixture of their own."""
    tensors = tuple(t for t in m.tensors if t.name.startswith(part))
    return m._replace(
        width=m.modal_width if part == VISION else m.width, modal_width=0, shared_width=0, tensors=tensors
    )


def _listed(tape: Tape, shape: tuple[int, ...], taken: tuple[int, ...], *, negated: bool) -> Storage:
    """The places of numbers; an expanded mask is made real for as long as that takes."""
    real = None if negated else tape.new(shape, "bool", "contiguous mask")
    places = tape.new((*taken, 3), "int64", "places")
    del real
    return places


def _picked(tape: Tape, x: Value, rows: int, *, negated: bool) -> Value:
    """``hidden_states[mask]``: keeps the mask."""
    shape, dtype, taken = x.shape, x.dtype, (rows, x.shape[1])
    mask = tape.new(shape, "bool", "mask of tokens") if negated else None
    places = _listed(tape, shape, taken, negated=negated)
    out = tape.value(taken, dtype, "rows of their tokens")
    del places

    def run(grad: Storage, kept: Storage | None = mask) -> list[Storage | None]:
        zeros = tape.new(shape, dtype, "index backward")
        listed = tape.new((*taken, 6), "int64", "places and their order")
        del listed
        return [zeros]

    return tape.record(out, (x,), run)


def _put(tape: Tape, final: Value, made: Value, *, negated: bool) -> Value:
    """``final[mask] = made``: in place; keeps the mask. What was there gets a copy of the gradient with zeros."""
    shape, dtype, taken = final.shape, final.dtype, made.shape
    mask = tape.new(shape, "bool", "mask of tokens") if negated else None
    _listed(tape, shape, taken, negated=negated)
    before, wants, narrow = final.origin is not None, made.origin is not None, made.dtype
    out = Value(final.storage, shape, dtype)

    def run(grad: Storage, kept: Storage | None = mask) -> list[Storage | None]:
        filled = tape.new(shape, dtype, "index_put backward") if before else None
        _listed(tape, shape, taken, negated=negated)
        return [filled, tape.new(taken, narrow, "index backward") if wants else None]

    return tape.record(out, (final, made), run)
