"""Mixtures of experts as transformers runs them by default: tokens sorted by expert, one grouped product per matrix.

Source: transformers 5.23 integrations/moe.py, grouped_mm_experts_forward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import add, add_in_place, cast, clamp, mul, scale, shift, unary
from memcheck.autograd.indexing import grouped_mm, index, slices, sum_groups
from memcheck.autograd.matrix import linear
from memcheck.autograd.modules import activation, normalise
from memcheck.autograd.operator import operator
from memcheck.autograd.parallel import enter_tensor_parallel, leave_tensor_parallel
from memcheck.autograd.tensor import Dim, Storage, Tape, Value
from memcheck.frameworks.transformers.adapters import factors_of, folded
from memcheck.frameworks.transformers.mlp import clamped, mlp
from memcheck.frameworks.transformers.modules import forward_of
from memcheck.frameworks.transformers.router import route
from memcheck.models.types import Mlp, Moe, Norm, ParameterTensor

Experts = Callable[[Context, Moe, Value], Value]
Step = Callable[[Tape, Value], Value]


def moe(ctx: Context, m: Moe, x: Value) -> Value:
    """The sparse block of a family: routed experts, and the shared ones where there are any."""
    if ctx.setting.dispatcher and ctx.setting.expert > 1:
        from memcheck.frameworks.transformers.expert_parallel import demand_whole

        demand_whole(ctx, m)
    own = forward_of(m)
    return usual_moe(ctx, m, x) if own is None else own(ctx, m, x)


def usual_moe(ctx: Context, m: Moe, x: Value, run: Experts | None = None) -> Value:
    """Routed experts, as ``run`` has them, and the sum with the shared ones."""
    tape, run = ctx.tape, run or routed_experts
    if m.shared_width and m.shared_gate:
        return _gated_shared(ctx, m, x)
    if m.shared_width and m.shared_first:
        shared = mlp(ctx, shared_mlp(m), x)
        first = run(ctx, m, x)
        first = scale(tape, first, "routed scaling") if m.scaled_output else first
        return add(tape, shared, first, "shared + routed")
    routed = run(ctx, m, x)
    if not m.shared_width:
        return scale(tape, routed, "routed scaling") if m.scaled_output else routed
    return _with_shared(ctx, m, x, routed)


def _with_shared(ctx: Context, m: Moe, x: Value, routed: Value) -> Value:
    shared = mlp(ctx, shared_mlp(m), x)
    return add(ctx.tape, routed, cast(ctx.tape, shared, routed.dtype), "routed + shared")


def averaged(ctx: Context, m: Moe, x: Value) -> Value:
    """Command A's experts: the mean of routed and shared outputs."""
    routed = routed_experts(ctx, m, x)
    if not m.shared_width:
        return routed
    both = _with_shared(ctx, m, x, routed)
    del routed
    return scale(ctx.tape, both, "average")


def summed_wide(ctx: Context, m: Moe, x: Value) -> Value:
    """Hy 3 (modeling_hy_v3.py): the sum of routed and shared outputs is of fp32 copies, and cast back."""
    routed = routed_experts(ctx, m, x)
    narrow, routed = routed.dtype, cast(ctx.tape, routed, "fp32")
    both = _with_shared(ctx, m, x, routed)
    del routed
    return cast(ctx.tape, both, narrow)


def noisy(ctx: Context, m: Moe, x: Value) -> Value:
    """Phi 3.5 (modeling_phimoe.py, PhimoeSparseMoeBlock): what router and experts read is multiplied by noise."""
    return usual_moe(ctx, m, x, lambda c, e, v: routed_experts(c, e, v, before=_noised))


def _noised(tape: Tape, x: Value) -> Value:
    """``hidden_states *= torch.empty_like(hidden_states).uniform_(...)``, in the block and again in its router."""
    for _ in range(2):
        x = _times_noise(tape, x)
    return x


def _times_noise(tape: Tape, x: Value) -> Value:
    noise = tape.new(x.shape, x.dtype, "noise")
    return operator(tape, Value(x.storage, x.shape, x.dtype), x, "mul_ backward", saves=(noise,))


def between_projections(ctx: Context, m: Moe, x: Value) -> Value:
    """Nemotron-H: experts work between two projections."""

    def run(ctx: Context, m: Moe, x: Value) -> Value:
        names = ("fc1_latent_proj", "fc2_latent_proj")
        return routed_experts(ctx, m, x, around=[next(t for t in m.tensors if name in t.name) for name in names])

    return usual_moe(ctx, m, x, run)


def routed_experts(
    ctx: Context, m: Moe, x: Value, *, before: Step | None = None, around: Sequence[ParameterTensor] = ()
) -> Value:
    """The routed experts alone. ``before``: what router and experts read is made by it; ``around``: matrices that the
    experts work between.
    """
    inside = enter_tensor_parallel(ctx, x)
    del x
    if before is not None:
        inside = before(ctx.tape, inside)
    choice = route(ctx, m, inside)
    if around:
        inside = linear(ctx.tape, inside, ctx.replicated(around[0]), around[0].name)
    if ctx.setting.dispatcher and ctx.setting.expert > 1:
        from memcheck.frameworks.transformers.expert_parallel import dispatched_experts

        out = dispatched_experts(ctx, m, inside, choice.scores, choice.indices)
    elif m.looped:
        from memcheck.frameworks.transformers.looped_experts import looped_experts

        out = looped_experts(ctx, m, inside, choice.scores)
    else:
        out = experts(ctx, m, inside, choice.scores, choice.indices)
    del inside
    if around:
        out = linear(ctx.tape, out, ctx.replicated(around[1]), around[1].name)
    return leave_tensor_parallel(ctx, out)


def experts_beside(ctx: Context, m: Moe, x: Value, stream: Value) -> Value:
    """Gemma 4: the dense network on the stream's norm, experts on a norm of their own; a norm after each, and the sum.

    The router reads the stream: a norm without weight, times a learned vector and a number (Gemma4TextRouter).
    """
    tape = ctx.tape
    hidden = stream.shape[-1]

    def normed(name: str, value: Value) -> Value:
        return normalise(ctx, Norm("rmsnorm-fp32-weight", hidden), value, name)

    if ctx.setting.dispatcher and ctx.setting.expert > 1:
        from memcheck.frameworks.transformers.expert_parallel import demand_whole

        demand_whole(ctx, m)
    dense = normed("post_feedforward_layernorm_1", mlp(ctx, shared_mlp(m), x))
    choice = route(ctx, m, stream)
    routed = experts(ctx, m, normed("pre_feedforward_layernorm_2", stream), choice.scores, choice.indices)
    routed = normed("post_feedforward_layernorm_2", routed)
    return add(tape, dense, routed, "dense + routed")


def _gated_shared(ctx: Context, m: Moe, x: Value) -> Value:
    """Qwen2-MoE, Qwen3-Next: the shared expert runs first; a sigmoid of one score per token weights it."""
    tape = ctx.tape
    shared = mlp(ctx, shared_mlp(m), x)
    routed = routed_experts(ctx, m, x)
    tensor = next(t for t in m.tensors if t.shape == (1, ctx.hidden))
    gate = unary(tape, linear(tape, x, ctx.replicated(tensor), tensor.name), "sigmoid")
    weighted = mul(tape, gate, shared)
    return add(tape, routed, weighted, "routed + shared")


def shared_mlp(m: Moe) -> Mlp:
    """The shared experts as one dense network."""
    tensors = tuple(t for t in m.tensors if t.group == "shared_experts")
    fused = len(tensors) == 2 and m.gated
    return Mlp(
        m.shared_width,
        m.gated,
        m.activation,
        fused_gate_up=fused,
        tensors=tensors,
        adaptable=not m.stacked_adapters,
        clamp=m.clamp,
    )


def experts(ctx: Context, m: Moe, x: Value, scores: Value, indices: Storage) -> Value:
    """``grouped_mm_experts_forward``: sort, gather, up, gate, down, weight, restore the order, sum over choices."""
    tape = ctx.tape
    hidden, narrow = x.shape[-1], x.dtype
    k = m.experts_per_token
    rows = Dim(x.shape[0] * k, "T*K")
    width = -(-m.width // ctx.setting.expert_tensor)
    local = -(-m.experts // ctx.setting.expert)
    first, second = expert_tensors(m)
    adapters = {t.name: factors_of(ctx, m, t, ctx.setting.params) for t in (first, second)}
    merged: list[Value] = []  # parametrize.cached() keeps both to the end of peft's forward around this one
    ids = tape.new((rows,), "int64", "sorted expert ids")
    order = tape.new((rows,), "int64", "sort order")
    token = tape.new((rows,), "int64", "token of each row")
    states = index(tape, x, token, (rows, hidden), "gather tokens")
    weights = index(tape, scores.view(rows), order, (rows,), "gather scores")
    _histogram = tape.new((rows,), "int32", "expert ids for histc")
    offsets = tape.new((local,), "int32", "group offsets")
    outputs = 2 * width if m.gated else width
    biases = _row_bias(ctx, m, first, ids, outputs)
    weight = expert_weight(ctx, first, (local, outputs, hidden), adapters, merged)
    inner = _grouped(ctx, states, weight, first, offsets)
    if biases is not None:
        inner = add_in_place(tape, inner, biases)
    inner = gate(tape, m, inner) if m.gated else activation(tape, inner, m.activation)
    biases = _row_bias(ctx, m, second, ids, hidden)
    weight = expert_weight(ctx, second, (local, hidden, width), adapters, merged)
    out = _grouped(ctx, inner, weight, second, offsets)
    del inner, weight
    if biases is not None:
        out = add_in_place(tape, out, biases)
    weighted = mul(tape, out, weights.view(rows, 1))
    inverse = tape.new((rows,), "int64", "inverse order")
    weighted = index(tape, weighted, inverse, (rows, hidden), "restore order")
    total = sum_groups(tape, weighted, k)
    return cast(tape, total, narrow)


def expert_tensors(m: Moe) -> tuple[ParameterTensor, ParameterTensor]:
    """The matrices of all experts: up (with gate), down."""
    found = [t for t in m.tensors if t.group == "experts" and not t.name.endswith("_bias")]
    return found[0], found[-1]


def expert_weight(
    ctx: Context,
    tensor: ParameterTensor,
    shape: tuple[int, int, int],
    adapters: dict[str, tuple[Value, Value] | None],
    merged: list[Value],
) -> Value:
    """The matrices of all experts, with their adapter folded in where they have one: those are put on ``merged``."""
    weight, factors = ctx.tape.parameter(ctx.parameter(tensor.name, shape)), adapters[tensor.name]
    if ctx.setting.adapter is not None and ctx.setting.adapter.stacked:
        from memcheck.frameworks.transformers.quantised_experts import dequantised

        weight = dequantised(ctx, shape, ctx.setting.adapter.storage)
    elif factors is None:
        return weight
    merged.append(weight if factors is None else folded(ctx.tape, weight, factors))
    return merged[-1]


def _grouped(ctx: Context, x: Value, weight: Value, tensor: ParameterTensor, offsets: Storage) -> Value:
    tape = ctx.tape
    x = cast(tape, x, weight.dtype)  # grouped_mm is not an autocast operator: the input follows the weight
    experts, outputs, inputs = weight.shape
    return grouped_mm(tape, x, weight, outputs, offsets, tensor.name, (experts, outputs, inputs))


def _row_bias(ctx: Context, m: Moe, tensor: ParameterTensor, ids: Storage, width: int) -> Value | None:
    """``bias[expert_ids]``: one row per routed token."""
    if not m.bias:
        return None
    bias = ctx.tape.parameter(ctx.parameter(tensor.name + "_bias", (tensor.shape[0], width)))
    return index(ctx.tape, bias, ids, (ids.shape[0], width), "gather biases")


def gate(tape: Tape, m: Moe, both: Value) -> Value:
    """``act(gate) * up`` on the two halves of one tensor, which stays whole."""
    half = (both.shape[0], both.shape[1] // 2)
    if m.clamp == "interleaved":
        return _clamped_gate(tape, both, half)
    g, up = tape.views(both, half, half)
    del both
    if m.clamp:
        return clamped(tape, m, g, up)
    return mul(tape, activation(tape, g, m.activation), up)


def _clamped_gate(tape: Tape, both: Value, half: tuple[int, int]) -> Value:
    """GptOssExperts._apply_gate."""
    g, up = slices(tape, both, half, half)
    del both
    g = clamp(tape, g, 1)
    up = clamp(tape, up, 2)
    glu = mul(tape, g, unary(tape, scale(tape, g), "sigmoid"))
    return mul(tape, shift(tape, up), glu)
