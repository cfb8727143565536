"""Dense feed-forward networks, as transformers and torchtitan write them."""

from __future__ import annotations

from memcheck.autograd.context import Context, enter_tensor_parallel, leave_tensor_parallel
from memcheck.autograd.elementwise import (
    add,
    cast,
    copy,
    dropout,
    maximum,
    mul,
    power,
    scale,
    shift,
    subtract,
    unary,
    where,
)
from memcheck.autograd.matrix import linear
from memcheck.autograd.tensor import Storage, Tape, Value
from memcheck.frameworks.transformers.norms import normalise
from memcheck.models.types import Mlp, Moe, ParameterTensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.models.vision import TowerAttention


def activation(tape: Tape, x: Value, name: str) -> Value:
    """Hugging Face's activation functions (transformers/activations.py): in one kernel, or in pieces."""
    if name in ("gelu_new", "gelu_accurate"):
        return _new_gelu(tape, x)
    if name == "gelu_fast":
        return _fast_gelu(tape, x)
    if name == "quick_gelu":  # QuickGELUActivation: input * sigmoid(1.702 * input)
        gate = unary(tape, scale(tape, x), "sigmoid")
        return mul(tape, x, gate)
    if name == "esm-gelu":  # modeling_esm.py: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))
        half = scale(tape, x)
        return mul(tape, half, shift(tape, _erf(tape, scale(tape, x))))
    if name == "bloom-gelu":
        return _bloom_gelu(tape, x)
    if name == "relu2":
        return power(tape, unary(tape, x, "relu"))
    return unary(tape, x, "silu" if name == "swish" else name)


def _new_gelu(tape: Tape, x: Value) -> Value:
    """NewGELUActivation: 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))."""
    half = scale(tape, x)
    # autocast runs pow in fp32 (the cuda fp32 list of aten/src/ATen/autocast_mode.h)
    cube = power(tape, _wide(tape, x))
    cube = scale(tape, cube)
    inner = add(tape, x, cube)
    del cube, x
    inner = scale(tape, inner)
    t = unary(tape, inner, "tanh")
    del inner
    one_plus = shift(tape, t)
    del t
    return mul(tape, half, one_plus)


def _fast_gelu(tape: Tape, x: Value) -> Value:
    """FastGELUActivation: 0.5 * x * (1 + tanh(x * 0.7978845608 * (1 + 0.044715 * x * x)))."""
    half = scale(tape, x)
    first = scale(tape, x)
    square = mul(tape, scale(tape, x), x)
    del x
    inner = shift(tape, square)
    del square
    inner = mul(tape, first, inner)
    del first
    t = unary(tape, inner, "tanh")
    del inner
    one_plus = shift(tape, t)
    del t
    return mul(tape, half, one_plus)


def _erf(tape: Tape, x: Value) -> Value:
    """``erf``: keeps its input; backward is ``2 / sqrt(pi) * exp(-(x.pow(2))) * grad`` (derivatives.yaml), whose
    temporaries live to the end of the expression.
    """
    out = tape.value(x.shape, x.dtype, "erf")
    shape, dtype = x.shape, x.dtype

    def run(grad: Storage) -> list[Storage | None]:
        pieces = [tape.new(shape, dtype, "erf backward") for _ in range(5)]
        return [pieces.pop()]

    return tape.record(out, (x,), run, saves=(x.storage,))


def _bloom_gelu(tape: Tape, x: Value) -> Value:
    """BloomGelu: an autograd function that keeps its input and computes the tanh polynomial in pieces, twice."""
    shape, dtype = x.shape, x.dtype
    half, scaled = tape.new(shape, dtype, "mul"), tape.new(shape, dtype, "mul")
    first = tape.new(shape, dtype, "mul")
    square = tape.new(shape, dtype, "mul")
    del first, half, scaled
    out = tape.value(shape, dtype, "bloom gelu")
    del square

    def run(grad: Storage) -> list[Storage | None]:
        pieces = [tape.new(shape, dtype, "bloom gelu backward") for _ in range(5)]
        result = pieces.pop()
        return [result]

    return tape.record(out, (x,), run, saves=(x.storage,))


def _xielu(ctx: Context, m: Mlp, x: Value) -> Value:
    """XIELUActivation in Python: two learned slopes, and ``where`` between the halves for x above and below zero."""
    tape = ctx.tape
    slopes = [ctx.parameter(t.name, t.shape) for t in m.tensors if t.name.rpartition(".")[2].startswith("alpha")]
    above, below = (_wide(tape, tape.parameter(p)) for p in slopes)  # softplus is on autocast's fp32 list
    positive = tape.new(x.shape, "bool", "x > 0")
    square = mul(tape, mul(tape, x, above), x)
    first = add(tape, square, scale(tape, x, "beta * x"))
    del square
    capped = maximum(tape, x)
    grown = unary(tape, _wide(tape, capped), "expm1")  # on autocast's fp32 list
    del capped
    difference = subtract(tape, grown, x)
    del grown
    sloped = mul(tape, difference, below)
    del difference
    second = add(tape, sloped, scale(tape, x, "beta * x"))
    del sloped
    return where(tape, positive, first, second)


def _wide(tape: Tape, x: Value) -> Value:
    return cast(tape, x, "fp32") if tape.autocast else x


def mlp(ctx: Context, m: Mlp, x: Value) -> Value:
    """LlamaMLP and its relatives: gate, up, down; or up, down."""
    tape = ctx.tape
    tensors = linear_tensors(m.tensors)
    x = enter_tensor_parallel(ctx, x)
    held = [x] if m.gated else []  # of the module's forward: its argument, to its end
    if ctx.setting.liger is not None and ctx.setting.liger.glu:
        from memcheck.frameworks.transformers.liger import gate_and_up, glu

        gate, up = gate_and_up(ctx, m, x, held)
        del x
        inner = glu(tape, gate, up)
        del gate, up
    elif m.gated and m.fused_gate_up:
        both = linear(tape, x, ctx.weights(tensors[0], m.bias, adaptable=m.adaptable), tensors[0].name)
        half = (*both.shape[:-1], both.shape[-1] // 2)
        gate, up = tape.views(both, half, half)
        del both, x
        inner = clamped(tape, m, gate, up) if m.clamp else mul(tape, up, activation(tape, gate, m.activation))
        held.append(gate)  # a view, which keeps its name (modeling_phi3.py, Phi3MLP)
        del gate, up
    elif m.gated and m.clamp:
        inner = _within_bounds(ctx, m, x, held)
    elif m.gated:
        gate = matrix(ctx, m, copy(tape, x, "contiguous") if m.copied else x, tensors[0])
        if m.sparse:
            from memcheck.frameworks.transformers.altup import largest

            gate = largest(tape, gate)
        acted = activation(tape, scale(tape, gate) if m.multiplied else gate, m.activation)
        held += [gate] if m.named_factors else []
        del gate
        up = matrix(ctx, m, copy(tape, x, "contiguous") if m.copied else x, tensors[1])
        del x
        inner = mul(tape, acted, up)
        held += [acted, up] if m.widens_inner or m.named_factors else []  # `hidden_gelu`, `hidden_linear`
        del acted, up
    else:
        up = linear(tape, x, ctx.weights(tensors[0], m.bias, adaptable=m.adaptable), tensors[0].name)
        if m.inline:
            x.storage = None
        inner = _xielu(ctx, m, up) if m.activation == "xielu" else activation(tape, up, m.activation)
        if m.nested:
            x.storage = None
        del up, x
    inner = _inner(ctx, m, inner)
    if m.widens_inner:  # modeling_t5.py, `hidden_states.to(self.wo.weight.dtype)`
        inner = cast(tape, inner, ctx.dtype_of(tensors[-1].name))
    down = _scaled_or_apart(ctx, m, matrix(ctx, m, inner, tensors[-1], bias=m.down_bias))
    down = leave_tensor_parallel(ctx, down)  # a hook of the last matrix, whose argument lives until it has run
    if m.multiplied:
        down = scale(tape, down, "multiplier")
    del held, inner
    return dropout(tape, down, m.dropout)


def _scaled_or_apart(ctx: Context, m: Mlp, down: Value) -> Value:
    if m.scaled_output:
        tensor = m.tensors[-1]
        return mul(ctx.tape, down, ctx.tape.parameter(ctx.parameter(tensor.name, tensor.shape)))
    if m.gated or not m.copied:
        return down
    from memcheck.autograd.layouts import gradient_copied

    return gradient_copied(ctx.tape, down, adapted=ctx.setting.adapter is not None)


def _within_bounds(ctx: Context, m: Mlp, x: Value, held: list[Value]) -> Value:
    """DeepseekV4MLP, Step3p7MLP: clamped gate and up, variables to the module's end; BeamMLP's are not clamped."""
    from memcheck.autograd.indexing import clamp

    tensors = linear_tensors(m.tensors)
    if m.clamp == "wide":
        from memcheck.frameworks.transformers.beam import wide_product

        held += [matrix(ctx, m, x, tensor) for tensor in tensors[:2]]
        return wide_product(ctx.tape, m, *held[-2:])
    gate = matrix(ctx, m, x, tensors[0])
    gate = clamp(ctx.tape, activation(ctx.tape, gate, m.activation) if m.clamp == "acted" else gate, 1)
    up = clamp(ctx.tape, matrix(ctx, m, x, tensors[1]), 2)
    held += [gate, up]
    return mul(ctx.tape, gate if m.clamp == "acted" else activation(ctx.tape, gate, m.activation), up)


def matrix(ctx: Context, m: Mlp | TowerAttention, x: Value, tensor: ParameterTensor, *, bias: bool = False) -> Value:
    """One matrix of a module, between two clamps where it has bounds (Gemma4ClippableLinear)."""
    weights = ctx.weights(tensor, m.bias or bias, adaptable=not isinstance(m, Mlp) or m.adaptable)
    if not m.clipped:
        return linear(ctx.tape, x, weights, tensor.name)
    from memcheck.autograd.indexing import clamp

    return clamp(ctx.tape, linear(ctx.tape, clamp(ctx.tape, x, 2), weights, tensor.name), 2)


def _inner(ctx: Context, m: Mlp, acted: Value) -> Value:
    """What the activation made, normed and dropped; the layer may have a variable for it."""
    out = dropout(ctx.tape, normalise(ctx, m.inner_norm, acted, "inner_norm"), m.inner_dropout)
    if m.named_inner:
        ctx.unused.append(out)
    return out


def clamped(tape: Tape, m: Mlp | Moe, gate: Value, up: Value) -> Value:
    """Both halves within bounds; GPT-OSS's gate, or an activation of it."""
    from memcheck.autograd.indexing import clamp

    if m.clamp == "acted":
        gate = clamp(tape, activation(tape, gate, m.activation), 1)
        return mul(tape, gate, clamp(tape, up, 2))
    gate, up = clamp(tape, gate, 1), clamp(tape, up, 2)
    if m.clamp.startswith("act"):
        return mul(tape, activation(tape, gate, m.activation), up)
    glu = mul(tape, gate, unary(tape, scale(tape, gate), "sigmoid"))
    return mul(tape, shift(tape, up), glu)


def linear_tensors(tensors: tuple[ParameterTensor, ...]) -> list[ParameterTensor]:
    """The matrices of a component that gradients reach, in the order of its forward pass."""
    return [t for t in tensors if t.linear and not t.fixed]
