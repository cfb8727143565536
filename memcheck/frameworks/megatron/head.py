"""Megatron's last unit: final norm, output layer, loss; and multi-token prediction in front of it.

Sources: Megatron-core ``models/gpt/gpt_model.py`` (_postprocess), ``models/common/language_module/language_module.py``,
``tensor_parallel/layers.py`` (ColumnParallelLinear: the output layer is the local one under every spec).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from memcheck.autograd import Tape, Value, backward
from memcheck.autograd.context import Context, Setting
from memcheck.autograd.curve import Curve, curve_of, end_forward, peak_of
from memcheck.autograd.tensor import Leaf, Parameter, Storage, ceil_div
from memcheck.frameworks.megatron.linear import fuses_wgrad, is_sequence_parallel, norm
from memcheck.frameworks.megatron.loss import cross_entropy, implementation
from memcheck.models.types import Norm
from memcheck.record import Record


class MegatronHead(Record):
    """What the last unit consists of. Hashable."""

    vocab: int
    """Padded vocabulary, all tensor ranks together."""
    final_norm: Norm | None
    tied: bool
    """The weight is the embedding's of the same rank."""
    trained: bool = True
    """The weight gets a gradient."""
    main_gradient_dtype: str | None = None
    """Dtype of the buffer that takes the weight's gradient, where it is made for each backward (Megatron-FSDP)."""
    other_elements: int = 0
    """Elements of other parameters in that buffer."""


def megatron_head_curve(
    head: MegatronHead,
    setting: Setting,
    forward: Callable[[Context, MegatronHead, Value, Gradients], Value] | None = None,
    *,
    inventory: bool = False,
) -> Curve:
    """Replay the final norm, output layer and loss, and return the memory curve of this last unit.

    ``forward``: :func:`head_forward`, or another framework's. ``until_backward_ends`` of the curve: bytes of a tied
    weight's gradient that waits for the embedding's.
    """
    tape = Tape(inventory=inventory)
    ctx = Context(tape, setting)
    shape, dtype = (ctx.residual_tokens, ctx.hidden), setting.compute_dtype
    x = Value(
        tape.new(shape, dtype, "last hidden state"), shape, dtype, Leaf() if setting.needs_input_gradient else None
    )
    tied_gradients: list[Storage] = []
    main_gradients: list[Storage] = []
    loss = (forward or head_forward)(ctx, head, x, Gradients(tied_gradients, main_gradients))
    forward_peak = peak_of(tape)
    input_leaf = x.origin  # its gradient leaves the unit: alive to the end of the backward
    x.storage = loss.storage = None  # from here on only the graph holds tensors
    saved = end_forward(tape)
    backward(tape, loss, [tape.new((ctx.tokens,), "fp32", "gradient of the loss per token")])
    curve = curve_of(tape, forward_peak, saved)
    waiting_bytes = sum(storage.bytes for storage in tied_gradients)
    main_gradients.clear()  # counted with the gradients that wait to be reduced from here on
    del input_leaf
    return curve._replace(until_backward_ends=waiting_bytes)


class Gradients(Record):
    """Lists that receive the gradients of the output weight, and so keep them alive."""

    awaiting_embedding: list[Storage]
    """Gradients of the output weight that wait for the embedding's, when the weight is tied."""
    new_buffers: list[Storage]
    """Megatron-FSDP's buffers that are made for them in this backward."""


def head_forward(ctx: Context, head: MegatronHead, x: Value, gradients: Gradients) -> Value:
    """Compute the final norm, the output layer and the loss of each token [tokens] from ``x`` [tokens, hidden]."""
    tape = ctx.tape
    normed = norm(ctx, head.final_norm, x, "decoder.final_layernorm")
    del x
    tape.component = "logits_and_loss"
    logits = output_layer(ctx, head, normed, gradients)
    loss = cross_entropy(tape, logits, implementation(ctx.setting))
    del normed  # _postprocess's argument
    return loss


def output_layer(ctx: Context, head: MegatronHead, hidden: Value, gradients: Gradients) -> Value:
    """Compute the logits [tokens, vocab / tp] of this rank's vocabulary shard.

    Under sequence parallelism ``hidden`` is gathered into the global buffer. Megatron-FSDP asks for the buffer of the
    weight's gradient when there is one: before the product that adds to it (``weight.get_main_grad()`` in
    tensor_parallel/layers.py), or to copy autograd's gradient (_grad_acc in megatron_fsdp.py), when the logits'
    gradient has died.
    """
    tape, setting = ctx.tape, ctx.setting
    gathers_input = is_sequence_parallel(ctx)
    shape, dtype = hidden.shape, hidden.dtype
    gathered_shape = (ctx.tokens, shape[-1]) if gathers_input else shape
    weight = Parameter(
        "output_layer", (ceil_div(head.vocab, ctx.tp), ctx.hidden), setting.param_dtype, head.trained, has_grad=True
    )
    ctx.register(weight)
    if head.tied and not fuses_wgrad(setting):
        # AccumulateGrad runs once, after the embedding's backward: until then this gradient waits in its buffer
        weight.consume_gradient = gradients.awaiting_embedding.append
    elif head.main_gradient_dtype is not None and not fuses_wgrad(setting):
        weight.consume_gradient = lambda _: _make_main_gradient(tape, weight, head, gradients)
    out = tape.value((*gathered_shape[:-1], weight.shape[0]), dtype, "logits")
    needs_input_grad, needs_weight_grad = hidden.needs_grad, weight.requires_grad
    saved_input = hidden.storage if needs_weight_grad else None

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: dX, reduce-scattered under sequence parallelism, and dW unless it is added to the main gradient."""
        dx = tape.new(gathered_shape, dtype, "output layer dX")
        reduced = tape.new(shape, dtype, "output layer reduce-scatter") if gathers_input else dx
        dw = None
        if needs_weight_grad and not fuses_wgrad(setting):
            dw = tape.new(weight.shape, dtype, "output layer dW")
        del dx
        if needs_weight_grad and fuses_wgrad(setting):
            _make_main_gradient(tape, weight, head, gradients)
        return [reduced if needs_input_grad else None, dw]

    return tape.record(out, (hidden, tape.parameter(weight)), run, saves=(saved_input,))


def _make_main_gradient(tape: Tape, weight: Parameter, head: MegatronHead, gradients: Gradients) -> None:
    """Allocate Megatron-FSDP's main-gradient buffer of the output layer, if it makes one for each backward."""
    if head.main_gradient_dtype is not None:
        shape = (prod(weight.shape) + head.other_elements,) if head.other_elements else weight.shape
        gradients.new_buffers.append(tape.new(shape, head.main_gradient_dtype, "main gradient of the output layer"))
