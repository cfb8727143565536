"""A whole forward pass without gradients, run in addition to the step's own: of a reference, a teacher, or the model
itself.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.kernels import Weights, linear
from memcheck.autograd.operator import cast, scale, unary
from memcheck.autograd.tensor import ITEM_BYTES, Parameter, Storage, Value
from memcheck.frameworks.forward_only_pass import ForwardOnlyPass
from memcheck.frameworks.registry import layers_of


class Outputs:
    """What a model's forward returns, as long as the loss refers to it.

    ``states``: hidden states that nothing else holds. ``all_states``: bytes of all hidden states.
    """

    __slots__ = ("all_states", "logits", "states")

    def __init__(self, logits: Value, states: list[Storage], all_states: int = 0) -> None:
        self.logits, self.states, self.all_states = logits, states, all_states
        """``states``: hidden states that nothing else holds; ``all_states``: bytes of all of them."""


def second_outputs(ctx: Context, second: ForwardOnlyPass, *, wide: bool, states: bool = False) -> Outputs:
    """Run the forward pass of the other model without gradients, and return its outputs, logits [tokens, vocab].

    ``wide``: logits are copied to fp32. ``states``: the loss asks for the hidden states of all layers.
    """
    hidden, pass_variables = _until_head(ctx, second, states=states)
    hidden_box = [hidden]
    # `hidden_states = self.norm(hidden_states)`; others keep the variable
    if second.setting.style.runs_transformers_modules:
        del hidden
    logits = _logits(ctx, second, hidden_box)
    pass_states = [pass_variables.pop("states")] if "states" in pass_variables else []
    pass_variables.clear()
    if second.other_outputs_bytes:
        pass_states.append(ctx.tape.new((second.other_outputs_bytes,), "int8", "rest of the other model's output"))
    ctx.tape.grad_enabled = True
    ctx.tape.autocast = None
    ctx.tape.casts.clear()
    return returned(ctx, Outputs(logits, pass_states, second.hidden_states_bytes if states else 0), wide=wide)


def second_hidden(ctx: Context, second: ForwardOnlyPass) -> tuple[Value, dict[str, Storage]]:
    """Run the other model up to its head, and return the normed last hidden state and what lives until its forward
    returns.

    The caller calls :func:`leave` when the forward returns.
    """
    hidden, pass_variables = _until_head(ctx, second, states=False)
    return _normed(ctx, second, hidden), pass_variables


def leave(ctx: Context, around: dict[str, Storage]) -> None:
    """End the pass of the other model: free its variables, and restore gradients and autocast."""
    around.clear()
    ctx.tape.grad_enabled, ctx.tape.autocast = True, None
    ctx.tape.casts.clear()


def returned(ctx: Context, outputs: Outputs, *, wide: bool) -> Outputs:
    """Return what the caller of a model gets: its outputs, or a copy of them in fp32, complete before the originals
    die.

    Source: accelerate ``utils/operations.py``, ``convert_outputs_to_fp32``.
    """
    if not wide:
        return outputs
    tape = ctx.tape
    states, item = outputs.states, ITEM_BYTES[ctx.setting.param_dtype]
    if outputs.all_states and item < ITEM_BYTES["fp32"]:
        states = [tape.new((outputs.all_states * 4 // item,), "int8", "hidden states in fp32")]
    return Outputs(cast(tape, outputs.logits, "fp32", "logits in fp32"), states, outputs.all_states)


def _until_head(ctx: Context, second: ForwardOnlyPass, *, states: bool) -> tuple[Value, dict[str, Storage]]:
    """Run all layers of the other model without gradients, and return its last hidden state, [tokens, hidden].

    The dictionary has what lives until the model's forward returns: gathered parameters, autocast copies, hidden
    states.
    """
    tape, pass_variables = ctx.tape, {}
    component = tape.component
    tape.grad_enabled, tape.autocast = False, second.setting.autocast_dtype
    tape.component = "communication_buffers"
    if second.gathered_bytes:
        pass_variables["gathered"] = tape.new(
            (second.gathered_bytes,), "int8", "gathered parameters of the other model"
        )
    tape.component = "activations"
    if second.tower_variables_bytes:
        pass_variables["tower_variables"] = tape.new(
            (second.tower_variables_bytes,), "int8", "what a tower made of pictures"
        )
    if states and second.hidden_states_bytes:
        pass_variables["states"] = tape.new((second.hidden_states_bytes,), "int8", "hidden states of all layers")
    layers = tape.new((second.layers_peak_bytes,), "int8", "layers of the pass without gradients")
    del layers
    if second.autocast_copies_bytes:
        pass_variables["casts"] = tape.new(
            (second.autocast_copies_bytes,), "int8", "autocast copies of the other model"
        )
    x = tape.value((ctx.tokens, second.head.hidden), second.setting.param_dtype, "last hidden state")
    tape.component = component
    return x, pass_variables


def _normed(ctx: Context, second: ForwardOnlyPass, x: Value) -> Value:
    inner = Context(ctx.tape, second.setting)
    return layers_of(second.setting.style).norm(inner, second.head.final_norm, x)


def _logits(ctx: Context, second: ForwardOnlyPass, box: list[Value]) -> Value:
    """Apply final norm, head, scale and soft cap of the other model: [tokens, vocab].

    ``box``: a list with the only reference to its last hidden state.
    """
    tape, head = ctx.tape, second.head
    hidden_states = _normed(ctx, second, box.pop())
    weight = Parameter("lm_head", (head.vocab, head.hidden), head.weight_dtype, head.trained, has_grad=True)
    bias = (
        Parameter("lm_head.bias", (head.vocab,), head.weight_dtype, head.trained, has_grad=True) if head.bias else None
    )
    logits = linear(tape, hidden_states, Weights(weight, bias), "logits of the other model")
    del hidden_states
    return capped(ctx, logits, scaled=head.scales_logits, softcap=head.softcap)


def capped(ctx: Context, logits: Value, *, scaled: bool, softcap: bool) -> Value:
    """Scale the logits, or cap them with a tanh, as some families do. ``logits``: [tokens, vocab]."""
    tape = ctx.tape
    if scaled:
        logits = scale(tape, logits, "logit scale")
    if softcap:
        logits = scale(tape, logits, "softcap")
        logits = unary(tape, logits, "tanh")
        logits = scale(tape, logits, "softcap")
    return logits
