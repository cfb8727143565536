"""Megatron's fused elementwise kernels: activations, bias-dropout-add.

Sources: Megatron-core ``fusions/fused_bias_swiglu.py``, ``fused_bias_gelu.py``, ``fused_bias_dropout.py`` and the
unfused branches of ``transformer/mlp.py``. ``jit_fuser`` is torch.compile: intermediate values stay in registers,
dropout masks are kept as one byte per element.
"""

from __future__ import annotations

from memcheck.autograd.context import Context, Setting
from memcheck.autograd.elementwise import add, add_bias, dropout, mul, unary
from memcheck.autograd.operator import GRAD_UNCHANGED, operator
from memcheck.autograd.tensor import Parameter, Storage, Tape, Value


def bias_dropout_add(ctx: Context, x: Value, bias: Parameter | None, residual: Value, p: float) -> Value:
    """Compute ``residual + dropout(x + bias)`` [tokens, hidden]: one fused kernel, or three operators.

    The fused kernel (``bias_dropout_fusion``, on by default) saves the dropout mask alone. ``p``: dropout probability.
    """
    tape = ctx.tape
    if not bool(ctx.setting.option("bias_dropout_fusion", True)):
        if bias is not None:
            x = add_bias(tape, x, tape.parameter(bias), "bias")
        x = dropout(tape, x, p)
        return add(tape, residual, x, "residual")
    out = tape.value(residual.shape, residual.dtype, "bias-dropout-add")
    mask = tape.new(x.shape, "bool", "dropout mask") if p > 0 else None
    own = GRAD_UNCHANGED if p == 0 and x.dtype == residual.dtype else "bias-dropout-add backward"
    if bias is None:
        return operator(tape, out, (x, residual), [own, GRAD_UNCHANGED], saves=(mask,))
    return operator(tape, out, (x, residual, tape.parameter(bias)), [own, GRAD_UNCHANGED, "sum"], saves=(mask,))


def fuses_activation(setting: Setting, gated: bool, activation: str, bias: bool) -> bool:
    """``bias_activation_fusion`` as ``arguments.py`` sets it: bias_swiglu_fusion or bias_gelu_fusion."""
    if gated and activation in ("silu", "swish"):
        return bool(setting.option("bias_swiglu_fusion", True))
    fits = activation == "quick_gelu" if gated else activation.startswith("gelu") and bias
    return fits and bool(setting.option("bias_gelu_fusion", True))


def activate(ctx: Context, x: Value, bias: Parameter | None, *, gated: bool, activation: str) -> Value:
    """The activation of a dense MLP: one kernel that keeps its input, or operators."""
    if fuses_activation(ctx.setting, gated, activation, bias is not None):
        return _fused(ctx, x, bias, gated=gated)
    tape = ctx.tape
    if bias is not None:
        x = add_bias(tape, x, tape.parameter(bias), "bias")
    if not gated:
        return relu_squared(tape, x) if activation == "relu2" else unary(tape, x, activation)
    half = (*x.shape[:-1], x.shape[-1] // 2)
    gate, up = tape.views(x, half, half)
    del x
    acted = unary(tape, gate, "silu" if activation == "swish" else activation)
    del gate
    # x_linear + glu_linear_offset: a copy even when the offset is 0.0
    up = add_offset(tape, up)
    return mul(tape, acted, up, "glu")


def add_offset(tape: Tape, x: Value) -> Value:
    """``x + number``: a new tensor, nothing kept."""
    return operator(tape, tape.value(x.shape, x.dtype, "add"), x, GRAD_UNCHANGED)


def relu_squared(tape: Tape, x: Value) -> Value:
    """``squared_relu`` (``core/activations.py``): torch.pow(F.relu(x), 2)."""
    from memcheck.autograd.elementwise import power

    return power(tape, unary(tape, x, "relu"))


def _fused(ctx: Context, x: Value, bias: Parameter | None, *, gated: bool) -> Value:
    """SwiGLUFunction, BiasSwiGLUFunction, GeLUFunction: keep the input of the activation."""
    tape = ctx.tape
    kept = store(ctx, x)
    width = x.shape[-1] // 2 if gated else x.shape[-1]
    out = tape.value((*x.shape[:-1], width), x.dtype, "activation")
    wide = [(x.shape, x.dtype, "input from fp8")] if kept is not x.storage else []
    if bias is None:
        return operator(tape, out, x, "activation backward", saves=(kept,), temporaries=wide)
    inputs = (x, tape.parameter(bias))
    return operator(tape, out, inputs, ["activation backward", "sum"], saves=(kept,), temporaries=wide)


def store(ctx: Context, x: Value) -> Storage | None:
    """What a fused activation keeps of its input: the input, or an fp8 copy (activation_func_fp8_input_store)."""
    if ctx.tape.grad_enabled and bool(ctx.setting.option("activation_func_fp8_input_store")):
        return ctx.tape.new(x.shape, "fp8", "fp8 input")
    return x.storage


def weighted_swiglu(ctx: Context, x: Value, probs: Value) -> Value:
    """WeightedSwiGLUFunction of routed experts: keeps its input and the routing weights of its tokens."""
    tape = ctx.tape
    kept = (store(ctx, x), probs.storage)
    shape, dtype = x.shape, x.dtype
    out = tape.value((*shape[:-1], shape[-1] // 2), dtype, "weighted swiglu")
    return operator(tape, out, (x, probs), "weighted swiglu backward", saves=kept)
