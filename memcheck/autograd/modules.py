"""Modules that many models share: norms, activations, one matrix with its adapters, the edges of tensor parallelism."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.kernels import linear
from memcheck.autograd.operator import (
    GRAD_UNCHANGED,
    add,
    add_bias,
    cast,
    cat,
    clamp,
    convert_weight,
    divide_rows,
    mean_rows,
    mul,
    operator,
    power,
    scale,
    shift,
    subtract_rows,
    unary,
)
from memcheck.autograd.tensor import Parameter, Storage, Tape, Value
from memcheck.models.module_types import ClippedMlp
from memcheck.models.types import Mlp, Norm, ParameterTensor
from memcheck.models.vision import ClippedTowerAttention, TowerAttention

MULTIPROCESSORS_MOST = 304
"""The backward of a norm adds up its weight's gradient with a row of partial sums for each multiprocessor: 304 on an
MI300X, more than on any other supported GPU. They are below 5 MB and live inside that kernel."""


def rms_norm_pieces(
    tape: Tape, x: Value, weight: Parameter | None, *, unit_offset: bool = False, weight_in_fp32: bool = False
) -> Value:
    """Run transformers' LlamaRMSNorm: x in fp32, x ** 2, mean, rsqrt, product, back to x's dtype, times weight.

    ``unit_offset``: as in Gemma, (1 + weight) multiplies in fp32 before the cast back. ``weight_in_fp32``: as in OLMo 2
    and GPT-OSS, the weight does. The fp32 product is a local variable of the module (``hidden_states``): it lives until
    the result exists.
    """
    source = x.dtype
    wide = cast(tape, x, "fp32")
    variance = mean_rows(tape, power(tape, wide))
    inverse = unary(tape, variance, "rsqrt")
    normed = mul(tape, wide, inverse)
    del wide, inverse
    if weight is None:
        return cast(tape, normed, source)
    if unit_offset:
        normed = mul(tape, normed, cast_offset(tape, weight))
        return cast(tape, normed, source)
    if weight_in_fp32:
        return cast(tape, mul(tape, tape.parameter(weight), normed), source)
    return mul(tape, tape.parameter(weight), cast(tape, normed, source))


def rms_norm_unrounded(tape: Tape, x: Value, weight: Parameter | None) -> Value:
    """Run T5LayerNorm: the variance of an fp32 copy, its product with the input, a cast to the weight's dtype.

    The product is assigned to the input's variable (``hidden_states``), so that the module no longer holds the input.
    """
    wide = cast(tape, x, "fp32")
    variance = mean_rows(tape, power(tape, wide))
    del wide
    inverse = unary(tape, variance, "rsqrt")
    normed = mul(tape, x, inverse)
    del x, inverse
    if weight is None:
        return normed
    return mul(tape, tape.parameter(weight), cast(tape, normed, weight.dtype))


def l2_norm_pieces(tape: Tape, x: Value) -> Value:
    """Compute Llama4TextL2Norm: an RMSNorm in fp32 without weight, its input passed as a temporary."""
    source = x.dtype
    wide = cast(tape, x, "fp32")
    del x
    inverse = unary(tape, mean_rows(tape, power(tape, wide)), "rsqrt")
    return cast(tape, mul(tape, wide, inverse), source)


def layer_norm_pieces(tape: Tape, x: Value, weight: Parameter | None) -> Value:
    """Compute CohereLayerNorm: mean, difference (twice), square, mean, rsqrt, product, fp32 weight, cast back."""
    source = x.dtype
    wide = cast(tape, x, "fp32")
    del x
    mean = mean_rows(tape, wide)
    variance = mean_rows(tape, power(tape, subtract_rows(tape, wide, mean)))
    hidden = mul(tape, subtract_rows(tape, wide, mean), unary(tape, variance, "rsqrt"))
    del wide
    if weight is not None:
        hidden = mul(tape, convert_weight(tape, tape.parameter(weight), "fp32"), hidden)
    return cast(tape, hidden, source)


def layer_norm_rounded(tape: Tape, x: Value, weight: Parameter, bias: Parameter) -> Value:
    """Compute DebertaLayerNorm: in fp32 to the quotient by a root, which is cast back; then the weight and the bias."""
    source = x.dtype
    wide = cast(tape, x, "fp32")
    del x
    mean = mean_rows(tape, wide)
    variance = mean_rows(tape, power(tape, subtract_rows(tape, wide, mean)))
    root = unary(tape, shift(tape, variance, "variance + eps"), "sqrt")
    hidden = divide_rows(tape, subtract_rows(tape, wide, mean), root)
    del wide
    hidden = cast(tape, hidden, source)
    return add_bias(tape, mul(tape, tape.parameter(weight), hidden), tape.parameter(bias))


def layer_norm_fp32(tape: Tape, x: Value) -> Value:
    """OlmoLayerNorm: F.layer_norm without weight on an fp32 copy."""
    return cast(tape, fused_norm(tape, cast(tape, x, "fp32"), None, None, "layernorm"), x.dtype)


def layer_norm_one_plus(tape: Tape, x: Value, weight: Parameter | None, bias: Parameter | None) -> Value:
    """Compute NemotronLayerNorm1P: F.layer_norm with weight + 1, in autocast's dtype (autocast is switched off
    inside).
    """
    if weight is None:
        return fused_norm(tape, x, weight, bias, "layernorm")
    autocast, tape.autocast = tape.autocast, None
    if autocast:
        x = cast(tape, x, autocast)
    shifted = tape.new(weight.shape, x.dtype, "weight + 1")
    out = fused_norm(tape, x, weight, bias, "layernorm", extra=shifted)
    tape.autocast = autocast
    return out


def layer_norm_per_head(tape: Tape, x: Value, weight: Parameter | None, bias: Parameter | None) -> Value:
    """Compute StableLmLayerNormPerHead: split by heads, one layer_norm each, cat.

    The small norms are replayed as one: each keeps its own output's input, a view of x, and its statistics.
    """
    normed = fused_norm(tape, x, weight, bias, "layernorm")
    return cat(tape, (normed,), x.shape, "cat heads")


def cast_offset(tape: Tape, weight: Parameter) -> Value:
    """``1.0 + weight.float()``: a small fp32 vector."""
    return operator(tape, tape.value(weight.shape, "fp32", "1 + weight"), tape.parameter(weight), "to backward")


def fused_norm(
    tape: Tape,
    x: Value,
    weight: Parameter | None,
    bias: Parameter | None,
    kind: str,
    *,
    extra: Storage | None = None,
) -> Value:
    """Run ``F.layer_norm`` or ``F.rms_norm`` in one kernel: saves its input, and rstd (and mean) per row in fp32.

    ``kind``: ``layernorm...`` or ``rmsnorm...``. ``extra``: a weight that was computed for this call, and is saved,
    too. Under autocast layer_norm runs in fp32. Source: aten/src/ATen/native/layer_norm.cpp and _fused_rms_norm.
    """
    if tape.autocast and kind.startswith("layernorm"):
        x = cast(tape, x, "fp32")
    out = tape.value(x.shape, x.dtype, kind)
    rows = x.shape[:-1]
    inputs = (x, *(tape.parameter(parameter) for parameter in (weight, bias) if parameter is not None))
    if not any(v.needs_grad for v in inputs):
        return out
    stats = [tape.new(rows, "fp32", kind + " rstd")]
    if kind.startswith("layernorm"):
        stats.append(tape.new(rows, "fp32", kind + " mean"))
    return operator(tape, out, inputs, kind + " backward", saves=(x, *stats, extra))


def liger_rms_norm(tape: Tape, x: Value, weight: Parameter | None, *, in_place: bool) -> Value:
    """Run LigerRMSNormFunction: saves its input and an fp32 rstd per row; the result has the input's dtype.

    ``in_place``: backward writes the input's gradient over the result's gradient.
    """
    out = tape.value(x.shape, x.dtype, "liger rms_norm")
    inputs = (x,) if weight is None else (x, tape.parameter(weight))
    if not any(v.needs_grad for v in inputs):
        return out
    kept = (x.storage, tape.new(x.shape[:-1], "fp32", "rms_norm rstd"))
    shape, dtype, trained = x.shape, x.dtype, weight is not None and weight.requires_grad

    def run(grad: Storage) -> list[Storage | None]:
        """Return the gradients of the input and the weight.

        The kernel sums the weight's gradient in one row of partial sums per multiprocessor, which live until it ends.
        """
        partial = tape.new((MULTIPROCESSORS_MOST, shape[-1]), "fp32", "rms_norm partial sums") if trained else None
        grad_x = grad if in_place else tape.new(shape, dtype, "rms_norm backward")
        if weight is None:
            return [grad_x]
        grad_weight = tape.new(weight.shape, "fp32", "sum") if trained else None
        if grad_weight is not None and weight.dtype != "fp32":
            grad_weight = tape.new(weight.shape, weight.dtype, "to")
        del partial
        return [grad_x, grad_weight]

    return tape.record(out, inputs, run, saves=kept)


def normalise(ctx: Context, norm: Norm | None, x: Value, name: str = "norm") -> Value:
    """Apply a norm as the family's transformers code computes it; without a norm, return ``x``.

    RMSNorm is several operators unless Liger replaces it, LayerNorm is one kernel unless the family writes its own.
    ``x``: [tokens, size]. ``name``: of the module, which its parameters begin with.
    """
    if norm is None:
        return x
    tape = ctx.tape
    weight, bias = ctx.norm_weight(norm, name)
    kind = norm.kind
    if kind == "rmsnorm-t5":
        return rms_norm_unrounded(tape, x, weight)
    liger = ctx.setting.liger
    replaced = liger is not None and liger.rms_norm and (name != "qk_norm" or liger.head_norms)
    if liger is not None and replaced and kind.startswith("rmsnorm"):
        return liger_rms_norm(tape, x, weight, in_place=liger.norm_in_place)
    if kind.startswith("rmsnorm"):
        return rms_norm_pieces(
            tape,
            x,
            weight,
            unit_offset=kind == "rmsnorm-unit-offset",
            weight_in_fp32=kind == "rmsnorm-fp32-weight",
        )
    if kind == "l2":
        return l2_norm_pieces(tape, x)
    return _layer_norm(ctx, norm, x, (weight, bias))


def _layer_norm(ctx: Context, norm: Norm, x: Value, affine: tuple[Parameter | None, Parameter | None]) -> Value:
    """Apply a layer norm as its kind writes it. ``x``: [tokens, size]. ``affine``: weight and bias, None for none."""
    tape = ctx.tape
    weight, bias = affine
    if norm.kind == "layernorm-pieces":
        return layer_norm_pieces(tape, x, weight)
    if norm.kind == "layernorm-rounded" and weight is not None and bias is not None:
        return layer_norm_rounded(tape, x, weight, bias)
    if norm.kind == "layernorm-fp32":
        return layer_norm_fp32(tape, x)
    if norm.kind == "layernorm-1p":
        return layer_norm_one_plus(tape, x, weight, bias)
    if norm.rows > 1:
        return layer_norm_per_head(tape, x, weight, bias)
    return fused_norm(tape, x, weight, bias, norm.kind)


def activation(tape: Tape, x: Value, name: str) -> Value:
    """Apply an activation function by its name in transformers/activations.py: one kernel, or operator by operator."""
    if name in ("gelu_new", "gelu_accurate"):
        return _new_gelu(tape, x)
    if name == "gelu_fast":
        return _fast_gelu(tape, x)
    if name == "quick_gelu":  # QuickGELUActivation: input * sigmoid(1.702 * input)
        gate = unary(tape, scale(tape, x), "sigmoid")
        return mul(tape, x, gate)
    if name == "esm-gelu":  # modeling_esm.py: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))
        half = scale(tape, x)
        return mul(tape, half, shift(tape, unary(tape, scale(tape, x), "erf")))
    if name == "bloom-gelu":
        return _bloom_gelu(tape, x)
    if name == "relu2":
        return power(tape, unary(tape, x, "relu"))
    return unary(tape, x, "silu" if name == "swish" else name)


def _new_gelu(tape: Tape, x: Value) -> Value:
    """Compute NewGELUActivation: 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))."""
    half = scale(tape, x)
    # autocast runs pow in fp32 (the cuda fp32 list of aten/src/ATen/autocast_mode.h)
    cube = power(tape, under_autocast_fp32(tape, x))
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
    """Compute FastGELUActivation: 0.5 * x * (1 + tanh(x * 0.7978845608 * (1 + 0.044715 * x * x)))."""
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


def _bloom_gelu(tape: Tape, x: Value) -> Value:
    """Apply BloomGelu, an autograd Function that saves its input and computes the tanh polynomial in each direction.

    ``x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))`` (modeling_bloom.py, bloom_gelu_forward).
    """
    shape, dtype = x.shape, x.dtype
    half, scaled = tape.new(shape, dtype, "mul"), tape.new(shape, dtype, "mul")
    first = tape.new(shape, dtype, "mul")
    square = tape.new(shape, dtype, "mul")
    del first, half, scaled
    out = tape.value(shape, dtype, "bloom gelu")
    del square
    label = "bloom gelu backward"
    return operator(tape, out, x, label, saves=(x,), temporaries=[(shape, dtype, label)] * 4)


def under_autocast_fp32(tape: Tape, x: Value) -> Value:
    """Return ``x`` in fp32 if autocast is on: it casts the inputs of operators on its fp32 list."""
    return cast(tape, x, "fp32") if tape.autocast else x


def matrix(
    ctx: Context, module: Mlp | TowerAttention, x: Value, tensor: ParameterTensor, *, bias: bool = False
) -> Value:
    """Compute the product with one matrix of a module, between two clamps if it has bounds (Gemma4ClippableLinear).

    ``bias``: this matrix has one, although the module's others have none.
    """
    weights = ctx.weights(tensor, module.bias or bias, adaptable=not isinstance(module, Mlp) or module.adaptable)
    if not isinstance(module, (ClippedMlp, ClippedTowerAttention)):
        return linear(ctx.tape, x, weights, tensor.name)

    out = linear(ctx.tape, clamp(ctx.tape, x, bounds=2), weights, tensor.name)
    return clamp(ctx.tape, out, bounds=2)


def enter_tensor_parallel(ctx: Context, x: Value) -> Value:
    """Return the input of column-parallel layers: gathered over the sequence (SP), or the replicated tensor itself.

    Backward: reduce-scatter (SP), or an all-reduce into a new tensor (functional collectives do not work in place).
    """
    tape = ctx.tape
    if ctx.tp == 1:
        return x
    shape, dtype = x.shape, x.dtype
    if not ctx.setting.sequence_parallel:
        return operator(tape, Value(x.storage, shape, dtype), x, "reduce input gradient")
    out = tape.value((ctx.tokens, *shape[1:]), dtype, "all-gather")
    if _cat_after_gather(ctx):
        out = tape.value(out.shape, dtype, "cat gathered sequence")
    return tape.record(out, (x,), lambda grad: [_reduce_scatter(ctx, grad, shape, "reduce input gradient")])


def leave_tensor_parallel(ctx: Context, x: Value) -> Value:
    """Return the output of a row-parallel layer: reduce-scattered (SP), or all-reduced into a new tensor.

    ``x``: the partial sums, [tokens, ...]. Under sequence parallelism the result is [tokens / tp, ...].
    """
    tape = ctx.tape
    if ctx.tp == 1:
        return x
    shape, dtype = x.shape, x.dtype
    if not ctx.setting.sequence_parallel:
        return operator(tape, tape.value(shape, dtype, "all-reduce"), x, GRAD_UNCHANGED)
    shard_shape = (ctx.residual_tokens, *shape[1:])
    out = Value(_reduce_scatter(ctx, x, shard_shape, "reduce-scatter"), shard_shape, dtype)
    if not _cat_after_gather(ctx):
        return operator(tape, out, x, "all-gather")
    return operator(tape, out, x, "cat gathered sequence", temporaries=[(shape, dtype, "all-gather")])


def _reduce_scatter(ctx: Context, x: Value | Storage, shard_shape: tuple[int, ...], label: str) -> Storage:
    """Reduce-scatter ``x`` into a tensor of ``shard_shape``, and return its storage.

    Functional collectives scatter along dim 0: chunks of a sequence in dimension 1 are first concatenated along it.

    torch/distributed/_functional_collectives.py, reduce_scatter_tensor (``torch.cat(torch.chunk(...))``).
    """
    tape = ctx.tape
    copied = tape.new(x.shape, x.dtype, "cat chunks") if ctx.setting.style.activation_layout == "batch-first" else None
    out = tape.output("reduce-scatter", shard_shape, x.dtype, label)
    del copied
    return out


def _cat_after_gather(ctx: Context) -> bool:
    """Whether all_gather_tensor along dim 1 copies the chunks into one tensor: unless the dimensions before are 1."""
    return ctx.setting.style.activation_layout == "batch-first" and ctx.setting.batch > 1
