"""Megatron's last unit: final norm, output layer, loss; and multi-token prediction in front of it.

Sources: Megatron-core ``models/gpt/gpt_model.py`` (_postprocess), ``models/common/language_module/language_module.py``,
``tensor_parallel/layers.py`` (ColumnParallelLinear: the output layer is the local one under every spec).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from memcheck.autograd import Tape, Value, backward
from memcheck.autograd.context import Context, Setting
from memcheck.autograd.curve import Curve, high, turn
from memcheck.autograd.tensor import Leaf, Parameter, Storage
from memcheck.frameworks.megatron.linear import fuses_wgrad, norm, scatters
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
    main_gradient: str | None = None
    """Dtype of the buffer that takes the weight's gradient, where it is made for each backward (Megatron-FSDP)."""
    beside: int = 0
    """Elements of other parameters in that buffer."""


def megatron_head_curve(
    head: MegatronHead,
    setting: Setting,
    forward: Callable[[Context, MegatronHead, Value, Gradients], Value] | None = None,
    *,
    inventory: bool = False,
) -> Curve:
    """Replay final norm, output layer and loss. ``forward``: :func:`head_forward`, or another folder's.

    ``lingers``: a tied weight's gradient that waits for the embedding's.
    """
    tape = Tape(inventory=inventory)
    ctx = Context(tape, setting)
    shape, dtype = (ctx.residual_tokens, ctx.hidden), setting.compute
    x = Value(tape.new(shape, dtype, "last hidden state"), shape, dtype, Leaf() if setting.input_grad else None)
    waiting: list[Storage] = []
    made: list[Storage] = []
    loss = (forward or head_forward)(ctx, head, x, Gradients(waiting, made))
    forward_high = high(tape)
    leaf = x.origin
    x.storage = None
    loss.storage = None
    saved = turn(tape)
    rows = (ctx.tokens,)
    backward(tape, loss, [tape.new(rows, "fp32", "gradient of the loss per token")])
    backward_high = high(tape)
    lingers = sum(s.bytes for s in waiting)
    gradients = tape.by_component.get("gradients", 0)
    made.clear()  # counted with the gradients that wait to be reduced from here on
    del leaf
    return Curve(
        saved=saved.bytes,
        saved_inventory=saved.inventory,
        saved_components=saved.components,
        until_forward_ends=0,
        forward=forward_high,
        backward=backward_high,
        gradients=gradients,
        lingers=lingers,
    )


class Gradients(Record):
    """Where gradients of the output weight go."""

    waiting: list[Storage]
    """Gradients of the output weight that wait for the embedding's, when the weight is tied."""
    made: list[Storage]
    """Buffers made for them."""


def head_forward(ctx: Context, head: MegatronHead, x: Value, gradients: Gradients) -> Value:
    """Final norm, output layer and the loss of each token."""
    tape = ctx.tape
    h = norm(ctx, head.final_norm, x, "decoder.final_layernorm")
    del x
    tape.component = "logits_and_loss"
    logits = output_layer(ctx, head, h, gradients)
    loss = cross_entropy(tape, logits, implementation(ctx.setting))
    del h  # _postprocess's argument
    return loss


def output_layer(ctx: Context, head: MegatronHead, h: Value, gradients: Gradients) -> Value:
    """Logits of this rank's vocabulary shard. Under sequence parallelism h is gathered into the global buffer.

    Megatron-FSDP asks for the buffer of the weight's gradient when there is one: before the product that adds to it
    (``weight.get_main_grad()`` in tensor_parallel/layers.py), or to copy what autograd has (_grad_acc in
    megatron_fsdp.py), when the logits' gradient has died.
    """
    tape, setting = ctx.tape, ctx.setting
    gathers = scatters(ctx)
    shape, dtype = h.shape, h.dtype
    full = (ctx.tokens, shape[-1]) if gathers else shape
    weight = Parameter(
        "output_layer", (-(-head.vocab // ctx.tp), ctx.hidden), setting.params, head.trained, has_grad=True
    )
    ctx.register(weight)
    if head.tied and not fuses_wgrad(setting):
        # AccumulateGrad runs once, after the embedding's backward: until then this gradient waits in its buffer
        weight.sink = gradients.waiting.append
    elif head.main_gradient is not None and not fuses_wgrad(setting):
        weight.sink = lambda _: _make(tape, weight, head, gradients)
    out = tape.value((*full[:-1], weight.shape[0]), dtype, "logits")
    wants_h, wants_w = h.origin is not None, weight.requires_grad
    kept = h.storage if wants_w else None

    def run(grad: Storage) -> list[Storage | None]:
        gx = tape.new(full, dtype, "output layer dX")
        reduced = tape.new(shape, dtype, "output layer reduce-scatter") if gathers else gx
        gw = None if fuses_wgrad(setting) or not wants_w else tape.new(weight.shape, dtype, "output layer dW")
        del gx
        if gw is None and wants_w:
            _make(tape, weight, head, gradients)
        return [reduced if wants_h else None, gw]

    return tape.record(out, (h, tape.parameter(weight)), run, saves=(kept,))


def _make(tape: Tape, weight: Parameter, head: MegatronHead, gradients: Gradients) -> None:
    if head.main_gradient is not None:
        shape = (prod(weight.shape) + head.beside,) if head.beside else weight.shape
        gradients.made.append(tape.new(shape, head.main_gradient, "main gradient of the output layer"))
