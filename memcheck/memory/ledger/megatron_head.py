"""Megatron's last unit: final norm, output layer, loss; and multi-token prediction in front of it.

Sources: Megatron-core ``models/gpt/gpt_model.py`` (_postprocess), ``models/common/language_module/language_module.py``,
``tensor_parallel/layers.py`` (ColumnParallelLinear: the output layer is the local one under every spec).
"""

from __future__ import annotations

from memcheck.architecture.types import Norm
from memcheck.memory.ledger.context import Context, Setting
from memcheck.memory.ledger.curve import Curve, high
from memcheck.memory.ledger.megatron_linear import fuses_wgrad, norm, scatters
from memcheck.memory.ledger.megatron_loss import cross_entropy, implementation
from memcheck.memory.tape import Tape, Value, backward
from memcheck.memory.tape.tensor import Leaf, Parameter, Storage
from memcheck.record import Record


class MegatronHead(Record):
    """What the last unit consists of. Hashable."""

    vocab: int
    """Padded vocabulary, all tensor ranks together."""
    final_norm: Norm | None
    tied: bool
    """The weight is the embedding's of the same rank."""
    trained: bool = True


def megatron_head_curve(head: MegatronHead, setting: Setting, *, inventory: bool = False) -> Curve:
    """Replay final norm, output layer and loss.

    ``lingers``: a tied weight's gradient that waits for the embedding's.
    """
    tape = Tape(inventory=inventory)
    ctx = Context(tape, setting)
    shape, dtype = (ctx.residual_tokens, ctx.hidden), setting.compute
    x = Value(tape.new(shape, dtype, "last hidden state"), shape, dtype, Leaf() if setting.input_grad else None)
    waiting: list[Storage] = []
    loss = _forward(ctx, head, x, waiting)
    forward_high = high(tape)
    leaf = x.origin
    x.storage = None
    loss.storage = None
    saved = tape.live
    saved_inventory = tuple(tape.inventory.values()) if tape.inventory is not None else ()
    components = tuple((k, v) for k, v in tape.by_component.items() if v)
    tape.component = "temporaries"
    tape.reset_peak()
    rows = (ctx.tokens,)
    backward(tape, loss, [tape.new(rows, "fp32", "gradient of the loss per token")])
    backward_high = high(tape)
    lingers = sum(s.bytes for s in waiting)
    del leaf
    return Curve(saved, saved_inventory, components, 0, forward_high, backward_high, 0, lingers)


def _forward(ctx: Context, head: MegatronHead, x: Value, waiting: list[Storage]) -> Value:
    tape = ctx.tape
    h = norm(ctx, head.final_norm, x, "decoder.final_layernorm")
    del x
    tape.component = "logits_and_loss"
    logits = output_layer(ctx, head, h, waiting)
    del h
    return cross_entropy(tape, logits, implementation(ctx.setting))


def output_layer(ctx: Context, head: MegatronHead, h: Value, waiting: list[Storage]) -> Value:
    """Logits of this rank's vocabulary shard. Under sequence parallelism h is gathered into the global buffer."""
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
        weight.sink = waiting.append
    out = tape.value((*full[:-1], weight.shape[0]), dtype, "logits")
    wants_h, wants_w = h.origin is not None, weight.requires_grad
    kept = h.storage if wants_w else None

    def run(grad: Storage, kept: Storage | None = kept) -> list[Storage | None]:
        gx = tape.new(full, dtype, "output layer dX")
        reduced = tape.new(shape, dtype, "output layer reduce-scatter") if gathers else gx
        gw = None if fuses_wgrad(setting) or not wants_w else tape.new(weight.shape, dtype, "output layer dW")
        del gx
        return [reduced if wants_h else None, gw]

    return tape.record(out, (h, tape.parameter(weight)), run)
