"""torchtitan's chunked loss: head, loss and backward run chunk by chunk inside the loss.

Source: torchtitan components/loss.py, ChunkedLossWrapper. The hidden states are detached; each chunk's logits, loss and
backward run at once; head gradients add up unsharded in the reduce dtype and are reduced with the last chunk; hidden
gradients add up in an fp32 buffer, which is cast and sent into the decoder at the end.
"""

from __future__ import annotations

from functools import lru_cache

from memcheck.accounts.ranks import Unit
from memcheck.accounts.state import LocalTensor, shard_numel
from memcheck.autograd import Tape, Value, backward
from memcheck.autograd.context import Context, Setting
from memcheck.autograd.curve import Curve, Saved, curve_of, peak_of, saved_now
from memcheck.autograd.kernels import Weights, linear
from memcheck.autograd.loss import compiled_cross_entropy, cross_entropy
from memcheck.autograd.modules import enter_tensor_parallel
from memcheck.autograd.tensor import Leaf, Parameter, Storage, ceil_div
from memcheck.frameworks.torchtitan.layers import norm
from memcheck.frameworks.transformers.head import Head
from memcheck.job.types import TrainingJob
from memcheck.record import Record

TIED_TABLE = "embed_tokens.weight"
"""Name of the embedding's table, which is the output weight of a tied model."""


class HeadShard(Record):
    """How FSDP2 shards and reduces the head's gradient while the loss is chunked, in elements."""

    padded_elements: int
    """Elements of the head's reduce-scatter input; 0 without FSDP2."""
    shard_elements: int
    """Elements of its output, this rank's shard."""
    reduce_dtype: str = "fp32"
    """Dtype in which gradients are added and reduced."""


def chunked_head_unit(
    job: TrainingJob, head: Head, setting: Setting, tensors: tuple[LocalTensor, ...], adds: bool, inventory: bool
) -> Unit:
    """Build the unit of final norm, head and chunked loss: its tensors, and its memory curves.

    Under FSDP2 the loss reduce-scatters the head's gradient itself. ``adds``: with gradient accumulation some
    micro-batch adds to existing gradients, and has a curve of its own (``later_curve``).
    """
    shard_group = job.layout.shard_group
    table = next((t for t in tensors if t.name == "lm_head.weight"), None)
    if head.tied:
        table = LocalTensor(TIED_TABLE, (ceil_div(head.vocab, setting.tensor_parallel), setting.hidden), head.trained)
    shard = HeadShard(0, 0)
    if job.layout.zero_stage == 3 and table is not None:
        shard_elements = shard_numel(table, shard_group)
        shard = HeadShard(shard_elements * shard_group, shard_elements, job.recipe.reduce)
    dtype = setting.param_dtype
    first_curve = chunked_head_curve(head, setting, dtype, shard, inventory=inventory)
    adding_curve = first_curve
    if adds:
        later_setting = setting.for_later_micro_batches()
        adding_curve = chunked_head_curve(
            head, later_setting, dtype, shard, reduction_pending=True, inventory=inventory
        )
    reduced_tensor = table.name if shard.padded_elements and table is not None else ""
    return Unit(
        kind="head",
        name="head and loss",
        tensors=tensors,
        first_curve=first_curve,
        later_curve=adding_curve,
        reduced_by_loss=reduced_tensor,
    )


@lru_cache(maxsize=512)
def chunked_head_curve(
    head: Head,
    setting: Setting,
    dtype: str,
    shard: HeadShard,
    *,
    reduction_pending: bool = False,
    inventory: bool = False,
) -> Curve:
    """Replay final norm, head and torchtitan's chunked loss, and return the memory curve in bytes.

    The loss runs the head's backward chunk by chunk: the curve's forward includes it, up to the reduced head gradient.
    ``shard``: sizes of the reduce-scatter of that gradient. ``reduction_pending``: with gradient accumulation, the
    previous micro-batch's reduce-scatter input is alive until this micro-batch's reduction.
    """
    tape = Tape(inventory=inventory)
    tape.dtensor_gradients = setting.uses_dtensor
    ctx = Context(tape, setting)
    shape = (ctx.residual_tokens, ctx.hidden)
    input_leaf = Leaf() if setting.needs_input_gradient else None
    last_hidden = Value(tape.new(shape, dtype, "last hidden state"), shape, dtype, input_leaf)
    hidden = enter_tensor_parallel(ctx, norm(ctx, head.final_norm, last_hidden))
    last_hidden.storage = None
    norm_peak, output_bytes = peak_of(tape), 0
    if hidden.storage is not None and head.loss.keep_logits:  # the model's output, which the training loop holds
        output_bytes = hidden.storage.bytes
    tape.reset_peak()
    pending_reduction = []
    if reduction_pending and shard.padded_elements:
        pending_reduction.append(tape.new((shard.padded_elements,), shard.reduce_dtype, "reduce-scatter input"))
    hidden_gradient = _chunk_loop(ctx, head, hidden, dtype, shard, pending_reduction)
    forward_peak = peak_of(tape)
    hidden.storage = None
    saved = _without(saved_now(tape), "temporaries", hidden_gradient[0].bytes)
    tape.reset_peak()
    backward(tape, hidden, hidden_gradient)
    return curve_of(tape, forward_peak, saved)._replace(until_backward_ends=output_bytes, peak_before_loss=norm_peak)


def _without(saved: Saved, component: str, n_bytes: int) -> Saved:
    """Return saved tensors without ``n_bytes`` of a component: the gradient that starts the decoder's backward."""
    components = dict(saved.components)
    components[component] = components.get(component, 0) - n_bytes
    nonzero = tuple((name, left) for name, left in components.items() if left)
    return Saved(bytes=saved.bytes - n_bytes, inventory=saved.inventory, components=nonzero)


def _chunk_loop(
    ctx: Context, head: Head, hidden: Value, dtype: str, shard: HeadShard, before: list[Storage]
) -> list[Storage]:
    """Replay ChunkedLossWrapper's loop over chunks of tokens: head, loss and backward of each chunk at once.

    ``hidden``: [tokens, hidden]. ``before``: the pending reduce-scatter input, which the last chunk's reduction frees.
    Returns a list with the gradient of the hidden states, so that the caller can drop the last reference.
    """
    tape, setting = ctx.tape, ctx.setting
    tape.component = "logits_and_loss"
    chunk_tokens = ceil_div(ctx.tokens, head.loss.chunks)
    weight_shape = (ceil_div(head.vocab, ctx.tp), int(ctx.hidden))
    accumulator = tape.new((ctx.tokens, ctx.hidden), "fp32", "gradient accumulator")
    head_gradient: Storage | None = None
    logits: Value | None = None
    last = head.loss.chunks - 1
    for i in sorted({0, min(1, last), last}):  # chunks between the second and the last need the same as the second
        chunk = Value(hidden.storage, (chunk_tokens, ctx.hidden), dtype, Leaf())
        weight = Parameter("lm_head", weight_shape, setting.param_dtype, head.trained, has_grad=False)
        logits = linear(tape, chunk, Weights(weight), "lm_head")  # the last chunk's logits live until here
        _chunk_loss(ctx, head, logits)
        chunk_gradient = chunk.origin.grad if isinstance(chunk.origin, Leaf) else None
        if not shard.padded_elements:
            if weight.grad_buffer is not None and head_gradient is None:
                head_gradient = weight.grad_buffer
        elif weight.grad_buffer is not None:
            if head_gradient is None:
                head_gradient = tape.new(weight_shape, shard.reduce_dtype, "accumulated head gradient")
            weight.grad_buffer = None
            if i == last:
                before.clear()
                _reduce_scatter_head(tape, shard)
                head_gradient = None
        del weight, chunk, chunk_gradient
    del logits, head_gradient
    result = tape.new((ctx.tokens, ctx.hidden), dtype, "gradient of the hidden states")
    del accumulator
    result.move("temporaries")
    return [result]


def _chunk_loss(ctx: Context, head: Head, logits: Value) -> None:
    """Compute the loss of a chunk, and run its backward down to the chunk's hidden states and the head's weight.

    ``logits``: [chunk tokens, vocabulary / tp], which the caller's variable still holds afterwards.
    """
    tape = ctx.tape
    if head.loss_is_compiled:
        loss = compiled_cross_entropy(tape, logits)
    else:
        loss = cross_entropy(tape, logits, upcast=head.loss.upcast, parallel=ctx.tp > 1)
    logits.origin = None  # the graph is the loss's alone
    backward(tape, loss, [tape.new((1,), "fp32", "output gradient")])


def _reduce_scatter_head(tape: Tape, shard: HeadShard) -> None:
    """Replay the reduce-scatter of the head's gradient: its full input and its sharded output are alive together.

    ``shard``: elements and dtype of both.
    """
    tape.component = "communication_buffers"
    full_gradient = tape.new((shard.padded_elements,), shard.reduce_dtype, "reduce-scatter input of the head")
    sharded_gradient = tape.new((shard.shard_elements,), shard.reduce_dtype, "reduce-scatter output of the head")
    del full_gradient, sharded_gradient
    tape.component = "logits_and_loss"
