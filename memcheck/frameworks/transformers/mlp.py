"""Dense feed-forward networks, as transformers and torchtitan write them."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.kernels import linear
from memcheck.autograd.modules import (
    activation,
    enter_tensor_parallel,
    leave_tensor_parallel,
    matrix,
    under_autocast_fp32,
)
from memcheck.autograd.operator import (
    add,
    cast,
    clamp,
    copy,
    dropout,
    gradient_copied,
    mean_rows,
    mul,
    operator,
    scale,
    shift,
    subtract,
    subtract_rows,
    unary,
    where,
)
from memcheck.autograd.tensor import Tape, Value
from memcheck.models.module_types import (
    BertMlp,
    CopiedGradientMlp,
    CopiedInputMlp,
    DownBiasMlp,
    FalconH1Mlp,
    GemmaMlp,
    NestedMlp,
    SparseGemmaMlp,
    T5Mlp,
)
from memcheck.models.parameters import linear_tensors
from memcheck.models.types import Mlp, Moe

TYPE_CHECKING = False


def _xielu(ctx: Context, mlp: Mlp, x: Value) -> Value:
    """Compute XIELUActivation in Python: two learned slopes, and ``where`` between the formulas for x > 0 and x <= 0.

    ``x``: [tokens, width]. autocast runs softplus and expm1 in fp32, so that it makes fp32 copies.
    """
    tape = ctx.tape
    slopes = [ctx.parameter(t.name, t.shape) for t in mlp.tensors if t.name.rpartition(".")[2].startswith("alpha")]
    positive_slope, negative_slope = (
        under_autocast_fp32(tape, tape.parameter(parameter)) for parameter in slopes
    )  # softplus is on autocast's fp32 list
    positive = tape.new(x.shape, "bool", "x > 0")
    square = mul(tape, mul(tape, x, positive_slope), x)
    positive_branch = add(tape, square, scale(tape, x, "beta * x"))
    del square
    capped = unary(tape, x, "min")
    expm1 = unary(tape, under_autocast_fp32(tape, capped), "expm1")  # on autocast's fp32 list
    del capped
    difference = subtract(tape, expm1, x)
    del expm1
    sloped = mul(tape, difference, negative_slope)
    del difference
    negative_branch = add(tape, sloped, scale(tape, x, "beta * x"))
    del sloped
    return where(tape, positive, positive_branch, negative_branch)


def mlp(ctx: Context, module: Mlp, x: Value) -> Value:
    """Run a dense feed-forward network: gate, up and down projections (LlamaMLP), or up and down.

    ``x``: [tokens, hidden]; so is what is returned. Between them are tensors of [tokens, width / tp].
    """
    tape = ctx.tape
    x = enter_tensor_parallel(ctx, x)
    variables = [x] if module.gated else []  # of the module's forward, which live until it returns
    if ctx.setting.liger is not None and ctx.setting.liger.glu:
        from memcheck.frameworks.transformers.liger import glu

        inner = glu(ctx, module, x, variables)
    elif not module.gated:
        inner = _activated_up(ctx, module, x)
    elif module.fused_gate_up:
        inner = _fused_gate_and_up(ctx, module, x, variables)
    elif module.clamp:
        inner = _clamped_gate_and_up(ctx, module, x, variables)
    else:
        inner = _gate_and_up(ctx, module, x, variables)
    del x
    inner = _after_activation(ctx, module, inner)
    down_tensor = linear_tensors(module.tensors)[-1]
    if isinstance(module, T5Mlp):  # modeling_t5.py, `hidden_states.to(self.wo.weight.dtype)`
        inner = cast(tape, inner, ctx.dtype_of(down_tensor.name))
    down = matrix(ctx, module, inner, down_tensor, bias=isinstance(module, DownBiasMlp))
    if isinstance(module, CopiedGradientMlp):  # the gradient of the output lies apart in memory
        down = gradient_copied(tape, down, adapted=ctx.setting.adapter is not None)
    down = leave_tensor_parallel(ctx, down)  # a hook of the last matrix, whose argument lives until it has run
    if isinstance(module, FalconH1Mlp):
        down = scale(tape, down, "multiplier")
    del variables, inner
    return dropout(tape, down, module.dropout)


def _activated_up(ctx: Context, module: Mlp, x: Value) -> Value:
    """Compute the activated up projection of a network without a gate, [tokens, width].

    ``x`` loses its storage where the layer's forward assigns its name again: before the activation (``inline``), or
    when a module that contains the activation returns (``NestedMlp``).
    """
    tensor = linear_tensors(module.tensors)[0]
    up = linear(ctx.tape, x, ctx.weights(tensor, module.bias, adaptable=module.adaptable), tensor.name)
    if module.inline:
        x.storage = None
    is_xielu = module.activation == "xielu"
    inner = _xielu(ctx, module, up) if is_xielu else activation(ctx.tape, up, module.activation)
    if isinstance(module, NestedMlp):
        x.storage = None
    return inner


def _fused_gate_and_up(ctx: Context, module: Mlp, x: Value, variables: list[Value]) -> Value:
    """Compute the gated product of the halves of one projection, [tokens, width] (modeling_phi3.py, Phi3MLP).

    ``variables``: of the module's forward, to which this adds: ``gate``, a view, keeps its name.
    """
    tape, tensor = ctx.tape, linear_tensors(module.tensors)[0]
    gate_and_up = linear(tape, x, ctx.weights(tensor, module.bias, adaptable=module.adaptable), tensor.name)
    half = (*gate_and_up.shape[:-1], gate_and_up.shape[-1] // 2)
    gate, up = tape.views(gate_and_up, half, half)
    variables.append(gate)
    if module.clamp:
        return clamped(tape, module, gate, up)
    return mul(tape, up, activation(tape, gate, module.activation))


def _gate_and_up(ctx: Context, module: Mlp, x: Value, variables: list[Value]) -> Value:
    """Compute the gated product of two projections, [tokens, width].

    ``variables``: of the module's forward, to which this adds what Gemma and T5 name: ``hidden_gelu`` and
    ``hidden_linear``, and Gemma's gate.
    """
    tape = ctx.tape
    gate_tensor, up_tensor = linear_tensors(module.tensors)[:2]
    gate = matrix(ctx, module, _contiguous(tape, module, x), gate_tensor)
    if isinstance(module, SparseGemmaMlp):
        gate = _keep_largest(tape, gate)
    activated = activation(tape, scale(tape, gate) if isinstance(module, FalconH1Mlp) else gate, module.activation)
    if isinstance(module, GemmaMlp):
        variables.append(gate)
    del gate
    up = matrix(ctx, module, _contiguous(tape, module, x), up_tensor)
    if isinstance(module, (T5Mlp, GemmaMlp)):
        variables += [activated, up]
    return mul(tape, activated, up)


def _contiguous(tape: Tape, mlp: Mlp, x: Value) -> Value:
    """Return the rows that a matrix multiplies: a copy of ``x`` if its rows lie apart in memory, else ``x`` itself."""
    return copy(tape, x, "contiguous") if isinstance(mlp, CopiedInputMlp) else x


def _clamped_gate_and_up(ctx: Context, mlp: Mlp, x: Value, variables: list[Value]) -> Value:
    """Compute the gated product of DeepseekV4MLP or Step3p7MLP, [tokens, width].

    Both classes clamp gate and up, which are put on ``variables``: they are variables to the module's end.
    """
    tensors = linear_tensors(mlp.tensors)
    gate = matrix(ctx, mlp, x, tensors[0])
    gate = clamp(ctx.tape, activation(ctx.tape, gate, mlp.activation) if mlp.clamp == "acted" else gate, 1)
    up = clamp(ctx.tape, matrix(ctx, mlp, x, tensors[1]), 2)
    variables += [gate, up]
    return mul(ctx.tape, gate if mlp.clamp == "acted" else activation(ctx.tape, gate, mlp.activation), up)


def _after_activation(ctx: Context, mlp: Mlp, acted: Value) -> Value:
    """Apply the inner dropout to the activation's output, [tokens, width].

    BERT's layer has a variable for it, which lives to the layer's end.
    """
    out = dropout(ctx.tape, acted, mlp.inner_dropout)
    if isinstance(mlp, BertMlp):
        ctx.unused_outputs.append(out)
    return out


def clamped(tape: Tape, mlp: Mlp | Moe, gate: Value, up: Value) -> Value:
    """Clamp gate and up, both [tokens, width], and multiply the activated gate by up.

    ``m.clamp`` says whether the activation comes before or after the clamp, or is GPT-OSS's ``gate * sigmoid(gate)``.
    """
    if mlp.clamp == "acted":
        gate = clamp(tape, activation(tape, gate, mlp.activation), 1)
        return mul(tape, gate, clamp(tape, up, 2))
    gate, up = clamp(tape, gate, 1), clamp(tape, up, 2)
    if mlp.clamp.startswith("act"):
        return mul(tape, activation(tape, gate, mlp.activation), up)
    glu = mul(tape, gate, unary(tape, scale(tape, gate), "sigmoid"))
    return mul(tape, shift(tape, up), glu)


def _keep_largest(tape: Tape, x: Value) -> Value:
    """Keep the largest activations of each row: ``relu(x - (mean + std * factor))`` (Gemma 3n's sparse layers).

    ``x``: [tokens, width]. std keeps x and its result. Its backward makes ``x - mean`` and the product with that
    (FunctionsManual.cpp, std_backward).
    """
    shape, dtype = x.shape, x.dtype
    rows = (*shape[:-1], 1)
    mean = mean_rows(tape, x)
    deviation = tape.value(rows, dtype, "std")
    deviation = operator(
        tape, deviation, x, "std backward", saves=(x, deviation), temporaries=[(shape, dtype, "std backward")]
    )
    cutoff = add(tape, mean, scale(tape, deviation, "std multiplier"))
    del mean, deviation
    return unary(tape, subtract_rows(tape, x, cutoff), "relu")
