"""A whole forward pass without gradients, run in addition to the step's own: of a reference, a teacher, or the model
itself.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import cast
from memcheck.autograd.matrix import Weights, linear
from memcheck.autograd.tensor import ITEM_BYTES, Parameter, Storage, Value
from memcheck.frameworks.forward_only_pass import ForwardOnlyPass
from memcheck.frameworks.layers import layers_of


class Outputs:
    """What a forward pass returns, as long as the loss refers to it."""

    __slots__ = ("all_states", "logits", "states")

    def __init__(self, logits: Value, states: list[Storage], all_states: int = 0) -> None:
        self.logits, self.states, self.all_states = logits, states, all_states
        """``states``: hidden states that nothing else holds; ``all_states``: bytes of all of them."""


def second_outputs(ctx: Context, second: ForwardOnlyPass, *, wide: bool, states: bool = False) -> Outputs:
    """The outputs of the other pass."""
    hidden, around = _until_head(ctx, second, states=states)
    logits = _logits(ctx, second, hidden)
    del hidden
    kept = [around.pop("states")] if "states" in around else []
    around.clear()
    if second.given_out:
        kept.append(ctx.tape.new((second.given_out,), "int8", "image tokens of the other model's output"))
    ctx.tape.grad_enabled = True
    ctx.tape.autocast = None
    ctx.tape.casts.clear()
    return returned(ctx, Outputs(logits, kept, second.states if states else 0), wide=wide)


def second_hidden(ctx: Context, second: ForwardOnlyPass) -> tuple[Value, dict[str, Storage]]:
    """The normed last hidden state of the other pass, and what lives until its forward returns.

    The caller calls :func:`leave` when it does.
    """
    hidden, around = _until_head(ctx, second, states=False)
    return _normed(ctx, second, hidden), around


def leave(ctx: Context, around: dict[str, Storage]) -> None:
    """The pass is over."""
    around.clear()
    ctx.tape.grad_enabled, ctx.tape.autocast = True, None
    ctx.tape.casts.clear()


def returned(ctx: Context, outputs: Outputs, *, wide: bool) -> Outputs:
    """What the caller of a model gets: itself, or a copy in fp32 (accelerate ``utils/operations.py``,
    ``convert_outputs_to_fp32``), which is complete before the originals die.
    """
    if not wide:
        return outputs
    tape = ctx.tape
    states, item = outputs.states, ITEM_BYTES[ctx.setting.params]
    if outputs.all_states and item < ITEM_BYTES["fp32"]:
        states = [tape.new((outputs.all_states * 4 // item,), "int8", "hidden states in fp32")]
    return Outputs(cast(tape, outputs.logits, "fp32", "logits in fp32"), states, outputs.all_states)


def _until_head(ctx: Context, second: ForwardOnlyPass, *, states: bool) -> tuple[Value, dict[str, Storage]]:
    """Run all layers. ``around``: what lives until the model's forward returns."""
    tape, around = ctx.tape, {}
    component = tape.component
    tape.grad_enabled, tape.autocast = False, second.setting.autocast
    tape.component = "communication_buffers"
    if second.gathered:
        around["gathered"] = tape.new((second.gathered,), "int8", "gathered parameters of the other model")
    tape.component = "activations"
    if second.seen:
        around["seen"] = tape.new((second.seen,), "int8", "what a tower made of pictures")
    if states and second.states:
        around["states"] = tape.new((second.states,), "int8", "hidden states of all layers")
    layers = tape.new((second.layers,), "int8", "layers of the pass without gradients")
    del layers
    if second.casts:
        around["casts"] = tape.new((second.casts,), "int8", "autocast copies of the other model")
    x = tape.value((ctx.tokens, second.head.hidden), second.setting.params, "last hidden state")
    tape.component = component
    return x, around


def _normed(ctx: Context, second: ForwardOnlyPass, x: Value) -> Value:
    inner = Context(ctx.tape, second.setting)
    return layers_of(second.setting.style).norm(inner, second.head.final_norm, x)


def _logits(ctx: Context, second: ForwardOnlyPass, x: Value) -> Value:
    tape, head = ctx.tape, second.head
    h = _normed(ctx, second, x)
    del x
    weight = Parameter("lm_head", (head.vocab, head.hidden), head.dtype, head.trained, has_grad=True)
    bias = Parameter("lm_head.bias", (head.vocab,), head.dtype, head.trained, has_grad=True) if head.bias else None
    logits = linear(tape, h, Weights(weight, bias), "logits of the other model")
    del h
    return capped(ctx, logits, scaled=head.scaled, softcap=head.softcap)


def capped(ctx: Context, logits: Value, *, scaled: bool, softcap: bool) -> Value:
    """Logits scaled, or capped with a tanh, as some families have them."""
    from memcheck.autograd.elementwise import scale, unary

    tape = ctx.tape
    if scaled:
        logits = scale(tape, logits, "logit scale")
    if softcap:
        logits = scale(tape, logits, "softcap")
        logits = unary(tape, logits, "tanh")
        logits = scale(tape, logits, "softcap")
    return logits
