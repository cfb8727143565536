"""Megatron's fused elementwise kernels: activations, bias-dropout-add.

Sources: Megatron-core ``fusions/fused_bias_swiglu.py``, ``fused_bias_gelu.py``, ``fused_bias_dropout.py`` and the
unfused branches of ``transformer/mlp.py``. ``jit_fuser`` is torch.compile: intermediate values stay in registers,
dropout masks are kept as one byte per element.

Megatron's dense MLP: linear_fc1 (gate and up in one), activation, linear_fc2.

Source: Megatron-core ``transformer/mlp.py``, ``transformer/moe/shared_experts.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

from memcheck.autograd.context import Context, Setting
from memcheck.autograd.operator import GRAD_UNCHANGED, Gradient, add, add_bias, dropout, mul, operator, power, unary
from memcheck.autograd.tensor import Node, Parameter, Storage, Tape, Value, ceil_div
from memcheck.frameworks.megatron.linear import Projection, column, projection, row
from memcheck.models.types import Mlp, Norm


def bias_dropout_add(ctx: Context, x: Value, bias: Parameter | None, residual: Value, probability: float) -> Value:
    """Compute ``residual + dropout(x + bias)`` [tokens, hidden]: one fused kernel, or three operators.

    The fused kernel (``bias_dropout_fusion``, on by default) saves the dropout mask alone. ``probability``: dropout's.
    """
    tape = ctx.tape
    if not bool(ctx.setting.option("bias_dropout_fusion", default=True)):
        if bias is not None:
            x = add_bias(tape, x, tape.parameter(bias), "bias")
        x = dropout(tape, x, probability)
        return add(tape, residual, x, "residual")
    out = tape.value(residual.shape, residual.dtype, "bias-dropout-add")
    mask = tape.new(x.shape, "bool", "dropout mask") if probability > 0 else None
    branch_gradient = GRAD_UNCHANGED if probability == 0 and x.dtype == residual.dtype else "bias-dropout-add backward"
    if bias is None:
        return operator(tape, out, (x, residual), [branch_gradient, GRAD_UNCHANGED], saves=(mask,))
    return operator(
        tape, out, (x, residual, tape.parameter(bias)), [branch_gradient, GRAD_UNCHANGED, "sum"], saves=(mask,)
    )


def several_outputs(
    tape: Tape,
    outputs: tuple[Value, ...],
    inputs: tuple[Value, ...],
    gradients: list[Gradient],
    saves: Sequence[Storage] = (),
) -> tuple[Value, ...]:
    """Record one kernel with several outputs, and return them; its backward runs once all have their gradients.

    ``gradients``, ``saves``: as in :func:`operator`.
    """
    kernel = operator(tape, Value(None, (), outputs[0].dtype), inputs, gradients, saves=saves)
    if not isinstance(kernel.origin, Node):
        return outputs
    kernel.origin.view_gradients = []  # the node waits for the gradients of all outputs
    return tuple([operator(tape, output, kernel, GRAD_UNCHANGED) for output in outputs])


def fuses_activation(setting: Setting, activation: str, *, gated: bool, bias: bool) -> bool:
    """Say whether one fused kernel computes bias and activation of an MLP (bias_swiglu_fusion, bias_gelu_fusion).

    ``gated``: the activation multiplies gate and up (GLU). ``activation``: its name in the model's config.
    ``arguments.py`` sets both options from ``bias_activation_fusion``. GeLU without a gate is only fused with a bias.
    """
    if gated and activation in ("silu", "swish"):
        return bool(setting.option("bias_swiglu_fusion", default=True))
    has_gelu_kernel = activation == "quick_gelu" if gated else activation.startswith("gelu") and bias
    return has_gelu_kernel and bool(setting.option("bias_gelu_fusion", default=True))


def activate(ctx: Context, x: Value, bias: Parameter | None, *, gated: bool, activation: str) -> Value:
    """Compute the activation of a dense MLP: one fused kernel that saves its input, or separate operators.

    ``x``: [tokens, width]; a ``gated`` MLP has gate and up in it, one after the other, and returns half the width.
    ``bias``: of the linear layer before, which is added first. ``activation``: its name in the model's config.
    """
    if fuses_activation(ctx.setting, activation, gated=gated, bias=bias is not None):
        return _fused(ctx, x, bias, gated=gated)
    tape = ctx.tape
    if bias is not None:
        x = add_bias(tape, x, tape.parameter(bias), "bias")
    if not gated:
        return relu_squared(tape, x) if activation == "relu2" else unary(tape, x, activation)
    half = (*x.shape[:-1], x.shape[-1] // 2)
    gate, up = tape.views(x, half, half)
    del x
    activated = unary(tape, gate, "silu" if activation == "swish" else activation)
    del gate
    # x_linear + glu_linear_offset: a copy even when the offset is 0.0
    up = add_offset(tape, up)
    return mul(tape, activated, up, "glu")


def add_offset(tape: Tape, x: Value) -> Value:
    """``x + number``: a new tensor, nothing kept."""
    return operator(tape, tape.value(x.shape, x.dtype, "add"), x, GRAD_UNCHANGED)


def relu_squared(tape: Tape, x: Value) -> Value:
    """Compute ``squared_relu`` (``core/activations.py``): torch.pow(F.relu(x), 2)."""
    return power(tape, unary(tape, x, "relu"))


def _fused(ctx: Context, x: Value, bias: Parameter | None, *, gated: bool) -> Value:
    """Compute an activation in one kernel, which saves its input (SwiGLUFunction, BiasSwiGLUFunction, GeLUFunction)."""
    tape = ctx.tape
    saved_input = store(ctx, x)
    width = x.shape[-1] // 2 if gated else x.shape[-1]
    out = tape.value((*x.shape[:-1], width), x.dtype, "activation")
    wide = [(x.shape, x.dtype, "input from fp8")] if saved_input is not x.storage else []
    if bias is None:
        return operator(tape, out, x, "activation backward", saves=(saved_input,), temporaries=wide)
    inputs = (x, tape.parameter(bias))
    return operator(tape, out, inputs, ["activation backward", "sum"], saves=(saved_input,), temporaries=wide)


def store(ctx: Context, x: Value) -> Storage | None:
    """Return what a fused activation saves of its input ``x``: the input, or an fp8 copy of it.

    The option ``activation_func_fp8_input_store`` asks for the copy.
    """
    if ctx.tape.grad_enabled and bool(ctx.setting.option("activation_func_fp8_input_store")):
        return ctx.tape.new(x.shape, "fp8", "fp8 input")
    return x.storage


def weighted_swiglu(ctx: Context, x: Value, routing_weights: Value) -> Value:
    """Compute WeightedSwiGLUFunction of routed experts: [copies, width / 2]; saves its input and the routing weights.

    ``x``: [copies, width]. ``routing_weights``: [copies], one for each copy of a token.
    """
    tape = ctx.tape
    saved = (store(ctx, x), routing_weights.storage)
    shape, dtype = x.shape, x.dtype
    out = tape.value((*shape[:-1], shape[-1] // 2), dtype, "weighted swiglu")
    return operator(tape, out, (x, routing_weights), "weighted swiglu backward", saves=saved)


def mlp(ctx: Context, mlp: Mlp, x: Value, spec: Norm | None, owner: str = "mlp") -> tuple[Value, Projection]:
    """Return the MLP's output and its second projection (whose bias the bias-dropout-add adds).

    ``spec``: the norm before it, where linear_fc1 does it (TE).
    """
    width = ceil_div(mlp.width, ctx.tp)
    fc1 = projection(ctx, owner + ".linear_fc1", width * (2 if mlp.gated else 1), ctx.hidden, bias=mlp.bias, adds=False)
    fc2 = projection(ctx, owner + ".linear_fc2", ctx.hidden, width, bias=mlp.bias, adds=False)
    inner = column(ctx, x, fc1, owner + ".linear_fc1", spec)
    del x
    inner = activate(ctx, inner, fc1.bias, gated=mlp.gated, activation=mlp.activation)
    return row(ctx, inner, fc2, owner + ".linear_fc2"), fc2
