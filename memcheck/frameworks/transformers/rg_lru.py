"""RecurrentGemma's recurrent block: two branches, a convolution, and a gated linear recurrence token by token.

transformers has no fused kernel for it. Source: transformers 5.23 models/recurrent_gemma/modeling_recurrent_gemma.py
(RecurrentGemmaRecurrentBlock, RecurrentGemmaRglru, SqrtBoundDerivative).
"""

from __future__ import annotations

from memcheck.autograd.checkpoint import retain
from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import cast, copy, mul, scale, shift, unary
from memcheck.autograd.indexing import slices
from memcheck.autograd.matrix import linear
from memcheck.autograd.modules import activation
from memcheck.autograd.operator import factors, operator
from memcheck.autograd.tensor import Storage, Tape, Value
from memcheck.errors import UnsupportedError
from memcheck.frameworks.transformers.scan import convolution
from memcheck.models.types import Mixer, ParameterTensor

Tensors = dict[str, ParameterTensor]
ACTIVATION = "gelu_pytorch_tanh"
"""The only one that the reader lets pass."""


def recurrent_block(ctx: Context, mixer: Mixer, x: Value) -> Value:
    """RecurrentGemmaRecurrentBlock.forward: the convolved branch through the recurrence, times the activated one."""
    if ctx.tp > 1 or ctx.setting.context > 1:
        said = "memcheck has no model of RecurrentGemma's recurrence on several ranks"
        raise UnsupportedError(said, "leave tensor and context at 1", "/parallelism")
    tape = ctx.tape
    tensors = {t.name.removeprefix("temporal_block."): t for t in mixer.tensors}
    y = activation(tape, _project(ctx, tensors, "linear_y", x), ACTIVATION)
    branch = _project(ctx, tensors, "linear_x", x)
    convolved = _convolved(ctx, tensors, branch, mixer.kernel)
    del branch
    states = _rg_lru(ctx, mixer, tensors, convolved)
    return _project(ctx, tensors, "linear_out", mul(tape, states, y))


def _project(ctx: Context, tensors: Tensors, name: str, x: Value) -> Value:
    tensor = tensors[f"{name}.weight"]
    return linear(ctx.tape, x, ctx.weights(tensor, True), tensor.name)


def _convolved(ctx: Context, tensors: Tensors, x: Value, kernel: int) -> Value:
    """``conv_1d(x)[..., :seq_len]``: padded on both sides, cut to the sequence."""
    tape = ctx.tape
    found = [tensors[f"conv_1d.{leaf}"] for leaf in ("weight", "bias")]
    weight, bias = (tape.parameter(ctx.parameter(t.name, t.shape)) for t in found)
    if tape.autocast:
        x, weight, bias = (cast(tape, v, tape.autocast) for v in (x, weight, bias))
    channels = x.shape[-1]
    out = convolution(tape, x, weight, bias, (ctx.batch * (ctx.sequence + kernel - 1), channels))
    return slices(tape, out, (ctx.tokens, channels))[0]


def _rg_lru(ctx: Context, mixer: Mixer, tensors: Tensors, x: Value) -> Value:
    """RecurrentGemmaRglru.forward; what it names lives to its end."""
    tape = ctx.tape
    rows = copy(tape, x, "reshape")
    opened, _ = _gate(ctx, tensors, "input_gate", rows)
    decay, second = _gate(ctx, tensors, "recurrent_gate", rows)
    vector = tensors["rg_lru.recurrent_param"]
    rate = tape.parameter(ctx.parameter(vector.name, vector.shape))
    rate = unary(tape, cast(tape, rate, "fp32") if tape.autocast else rate, "softplus")
    log_decay = mul(tape, scale(tape, decay, "-8 * gate"), rate)
    del rate, decay
    decay = unary(tape, log_decay, "exp")
    square = unary(tape, scale(tape, log_decay, "2 * log"), "exp")
    gated = mul(tape, x, opened)
    multiplier = _bounded_root(tape, shift(tape, square, "1 - a_square"))
    multiplier = shift(tape, scale(tape, multiplier, "~reset * multiplier"), "reset + multiplier")
    normed = mul(tape, gated, cast(tape, multiplier, x.dtype))
    out = _scan(ctx, normed, scale(tape, decay, "gate * ~reset"))
    del rows, opened, decay, second, log_decay, square, gated, multiplier, normed
    return out


def _gate(ctx: Context, tensors: Tensors, name: str, rows: Value) -> tuple[Value, Value]:
    """``sigmoid(baddbmm(bias, rows, weight).transpose(0, 1).reshape(...))``, and the product after it."""
    tape = ctx.tape
    found = [tensors[f"rg_lru.{name}_{leaf}"] for leaf in ("weight", "bias")]
    weight, bias = (tape.parameter(ctx.parameter(t.name, t.shape)) for t in found)
    if tape.autocast:
        rows, weight, bias = (cast(tape, v, tape.autocast) for v in (rows, weight, bias))
    shape, dtype = rows.shape, rows.dtype
    out = tape.value(shape, dtype, name)
    small, offset = weight.shape, bias.shape
    out = operator(
        tape,
        out,
        (rows, weight, bias),
        [name + " dX", (small, dtype, name + " dW"), (offset, dtype, "sum")],
        saves=factors(rows, weight),
    )
    return unary(tape, copy(tape, out, "reshape"), "sigmoid"), out


def _bounded_root(tape: Tape, x: Value) -> Value:
    """SqrtBoundDerivative: keeps its input; backward divides by the root of what it clips."""
    out = tape.value(x.shape, x.dtype, "sqrt")
    shape, dtype = x.shape, x.dtype

    def run(grad: Storage) -> list[Storage | None]:
        scaled = tape.new(shape, dtype, "4 * x")
        clipped = tape.new(shape, dtype, "clip")
        del scaled
        root = tape.new(shape, dtype, "sqrt")
        result = tape.new(shape, dtype, "div")
        del clipped, root
        return [result]

    return tape.record(out, (x,), run, saves=(x.storage,))


def _scan(ctx: Context, x: Value, decay: Value) -> Value:
    """``_rnn_scan``: ``state = decay[:, t] * state + x[:, t]`` in fp32, written into a tensor of all tokens.

    Kept: every token's state but the last, and an fp32 copy of every decay unless that is fp32. In backward each
    token's gradient is a copy of the whole and a slice of it. Gradients of x and of the decays are slices written into
    zeros of all tokens' size, and added to those of the later tokens.
    """
    tape, tokens = ctx.tape, ctx.sequence
    one, every, dtype = (ctx.batch, x.shape[-1]), x.shape, x.dtype
    first = tape.new(one, "fp32", "states")
    out = tape.value(every, dtype, "contextualized states")
    saving = tape.grad_enabled and x.origin is not None
    copied = decay.dtype != "fp32"
    states = tape.new((max(tokens - 1, 0), *one), "fp32", "states") if saving else None
    decays = tape.new((tokens, *one), "fp32", "decays") if saving and copied else None
    parts = [tape.new(one, "fp32", "state") for _ in range(3)]
    del parts
    kept = [first, states, decays, None if copied else decay.storage]
    rate = decay.dtype

    def run(grad: Storage) -> list[Storage | None]:
        whole = tape.new(every, dtype, "CopySlices")
        through = tape.new(every, dtype, "select backward")
        rates = tape.new(every, rate, "select backward")
        again = tape.new(every, rate, "select backward")
        del again, whole
        kept.clear()
        return [through, rates]

    out = tape.record(out, (x, decay), run, saves=kept)
    # an attribute of the module: recomputed, the last state has the graph that made it, until the next forward
    retain(tape, Value(None, one, "fp32", out.origin))
    return out
