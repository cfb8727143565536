"""torchtitan's chunked loss: head, loss and backward run chunk by chunk inside the loss.

Source: torchtitan components/loss.py, ChunkedLossWrapper. The hidden states are detached; each chunk's logits, loss and
backward run at once; head gradients add up unsharded in the reduce dtype and are reduced with the last chunk; hidden
gradients add up in an fp32 buffer, which is cast and sent into the decoder at the end.
"""

from __future__ import annotations

from functools import lru_cache

from memcheck.accounts.state import LocalTensor, shard_numel
from memcheck.accounts.unit import Unit
from memcheck.autograd import Tape, Value, backward
from memcheck.autograd.context import Context, Setting
from memcheck.autograd.curve import Curve, high
from memcheck.autograd.loss import compiled_cross_entropy, cross_entropy
from memcheck.autograd.matrix import Weights, linear
from memcheck.autograd.parallel import enter_tensor_parallel
from memcheck.autograd.tensor import Leaf, Parameter, Storage
from memcheck.frameworks.torchtitan.layers import norm
from memcheck.frameworks.transformers.head import Head
from memcheck.job.types import TrainingJob
from memcheck.record import Record

TIED_TABLE = "embed_tokens.weight"


class HeadShard(Record):
    """How FSDP2 treats the head while it is chunked, in elements."""

    padded: int
    """Elements of the head's reduce-scatter input; 0 without FSDP2."""
    shard: int
    reduce: str = "fp32"


def chunked_head_unit(
    job: TrainingJob, head: Head, setting: Setting, tensors: tuple[LocalTensor, ...], adds: bool, inventory: bool
) -> Unit:
    """Final norm, head and loss. ``adds``: some micro-batch adds to gradients that are there."""
    ways = job.layout.shard_group
    table = next((t for t in tensors if t.name == "lm_head.weight"), None)
    if head.tied:
        table = LocalTensor(TIED_TABLE, (-(-head.vocab // setting.tensor), setting.hidden), head.trained)
    shard = HeadShard(0, 0)
    if job.layout.zero_stage == 3 and table is not None:
        part = shard_numel(table, ways)
        shard = HeadShard(part * ways, part, job.recipe.reduce)
    dtype = setting.params
    fresh = chunked_head_curve(head, setting, dtype, shard, inventory=inventory)
    again = chunked_head_curve(head, setting.later(), dtype, shard, True, inventory=inventory) if adds else fresh
    reduced = table.name if shard.padded and table is not None else ""
    return Unit(kind="head", name="head and loss", tensors=tensors, fresh=fresh, again=again, reduced=reduced)


@lru_cache(maxsize=512)
def chunked_head_curve(
    head: Head, setting: Setting, dtype: str, shard: HeadShard, waits: bool = False, *, inventory: bool = False
) -> Curve:
    """The unit's curve: everything up to the reduced head gradient is its forward.

    ``waits``: the input of the last micro-batch's reduction is there until this one's.
    """
    tape = Tape(inventory=inventory)
    tape.subclass = setting.dtensors
    ctx = Context(tape, setting)
    shape = (ctx.residual_tokens, ctx.hidden)
    leaf = Leaf() if setting.input_grad else None
    x = Value(tape.new(shape, dtype, "last hidden state"), shape, dtype, leaf)
    hidden = enter_tensor_parallel(ctx, norm(ctx, head.final_norm, x))
    x.storage = None
    normed, output = high(tape), hidden.storage.bytes if hidden.storage is not None and head.loss.keep_logits else 0
    tape.reset_peak()
    before = [tape.new((shard.padded,), shard.reduce, "reduce-scatter input")] if waits and shard.padded else []
    gradient = _chunks(ctx, head, hidden, dtype, shard, before)
    forward_high = high(tape)
    hidden.storage = None
    saved = tape.live - gradient[0].bytes
    components = [(k, v) for k, v in tape.by_component.items() if v]
    merged = dict(components)
    merged["temporaries"] = merged.get("temporaries", 0) - gradient[0].bytes
    saved_inventory = tuple(tape.inventory.values()) if tape.inventory is not None else ()
    tape.reset_peak()
    backward(tape, hidden, gradient)
    return Curve(
        saved=saved,
        saved_inventory=saved_inventory,
        saved_components=tuple((k, v) for k, v in merged.items() if v),
        until_forward_ends=0,
        forward=forward_high,
        backward=high(tape),
        gradients=tape.by_component.get("gradients", 0),
        lingers=output,
        before=normed,
    )


def _chunks(
    ctx: Context, head: Head, hidden: Value, dtype: str, shard: HeadShard, before: list[Storage]
) -> list[Storage]:
    """The loop over chunks; returns the boxed gradient of the hidden states. ``before``: what the reduction frees."""
    tape, s = ctx.tape, ctx.setting
    tape.component = "logits_and_loss"
    rows = -(-ctx.tokens // head.loss.chunks)
    width = (-(-head.vocab // ctx.tp), int(ctx.hidden))
    accumulator = tape.new((ctx.tokens, ctx.hidden), "fp32", "gradient accumulator")
    summed: Storage | None = None
    logits: Value | None = None
    last = head.loss.chunks - 1
    for i in sorted({0, min(1, last), last}):  # all between the first and the last are like the second
        chunk = Value(hidden.storage, (rows, ctx.hidden), dtype, Leaf())
        weight = Parameter("lm_head", width, s.params, head.trained, has_grad=False)
        fresh = linear(tape, chunk, Weights(weight), "lm_head")
        logits = None  # the loop variable of the previous chunk lives until it is assigned again
        logits = fresh
        del fresh
        if head.compiled:
            loss = compiled_cross_entropy(tape, logits)
        else:
            loss = cross_entropy(tape, logits, upcast=head.loss.upcast, parallel=ctx.tp > 1)
        logits.origin = None
        backward(tape, loss, [tape.new((1,), "fp32", "output gradient")])
        del loss
        grad = chunk.origin.grad if isinstance(chunk.origin, Leaf) else None
        if not shard.padded:
            if weight.grad_buffer is not None and summed is None:
                summed = weight.grad_buffer
        elif weight.grad_buffer is not None:
            if summed is None:
                summed = tape.new(width, shard.reduce, "accumulated head gradient")
            weight.grad_buffer = None
            if i == last:
                before.clear()
                _reduce(tape, shard)
                summed = None
        del weight, chunk, grad
    del logits, summed
    result = tape.new((ctx.tokens, ctx.hidden), dtype, "gradient of the hidden states")
    del accumulator
    result.move("temporaries")
    return [result]


def _reduce(tape: Tape, shard: HeadShard) -> None:
    tape.component = "communication_buffers"
    whole = tape.new((shard.padded,), shard.reduce, "reduce-scatter input of the head")
    part = tape.new((shard.shard,), shard.reduce, "reduce-scatter output of the head")
    del whole, part
    tape.component = "logits_and_loss"
