"""Mixtures of experts as transformers runs them by default: tokens sorted by expert, one grouped product per matrix.

Source: transformers 5.23 integrations/moe.py, grouped_mm_experts_forward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from memcheck.autograd.context import Context
from memcheck.autograd.kernels import linear
from memcheck.autograd.modules import activation, enter_tensor_parallel, leave_tensor_parallel, normalise
from memcheck.autograd.operator import (
    add,
    add_in_place,
    cast,
    clamp,
    grouped_mm,
    index,
    mul,
    operator,
    scale,
    shift,
    slices,
    sum_groups,
    unary,
)
from memcheck.autograd.tensor import Dim, Storage, Tape, Value, ceil_div
from memcheck.frameworks.transformers.adapters import factors_of, folded
from memcheck.frameworks.transformers.mlp import clamped, mlp
from memcheck.frameworks.transformers.modules import forward_of
from memcheck.frameworks.transformers.quantised_experts import AdaptedExperts
from memcheck.frameworks.transformers.router import route
from memcheck.models.types import Mlp, Moe, Norm, ParameterTensor

Experts = Callable[[Context, Moe, Value], Value]
Step = Callable[[Tape, Value], Value]


def moe(ctx: Context, moe: Moe, x: Value) -> Value:
    """Run the sparse block of a family: routed experts, and the shared experts if there are any. ``x``: [tokens,
    hidden].
    """
    if ctx.setting.dispatcher and ctx.setting.expert_parallel > 1:
        from memcheck.frameworks.transformers.expert_parallel import require_whole_experts

        require_whole_experts(ctx, moe)
    own_forward = forward_of(moe)
    return usual_moe(ctx, moe, x) if own_forward is None else own_forward(ctx, moe, x)


def usual_moe(ctx: Context, moe: Moe, x: Value, run_experts: Experts | None = None) -> Value:
    """Run the routed experts, and add the output of the shared experts. ``x``: [tokens, hidden].

    ``run_experts``: computes the routed experts, where a family does not use :func:`routed_experts`. The order of both
    decides which output is alive while the other is computed.
    """
    tape, run_experts = ctx.tape, run_experts or routed_experts
    if moe.shared.width and moe.shared.gate:
        return _gated_shared(ctx, moe, x)
    if moe.shared.width and moe.shared.runs_first:
        shared = mlp(ctx, shared_mlp(moe), x)
        routed = run_experts(ctx, moe, x)
        routed = scale(tape, routed, "routed scaling") if moe.scaled_output else routed
        return add(tape, shared, routed, "shared + routed")
    routed = run_experts(ctx, moe, x)
    if not moe.shared.width:
        return scale(tape, routed, "routed scaling") if moe.scaled_output else routed
    return _with_shared(ctx, moe, x, routed)


def _with_shared(ctx: Context, moe: Moe, x: Value, routed: Value) -> Value:
    """Run the shared experts, and add their output to the routed experts' output, [tokens, hidden]."""
    shared = mlp(ctx, shared_mlp(moe), x)
    return add(ctx.tape, routed, cast(ctx.tape, shared, routed.dtype), "routed + shared")


def averaged(ctx: Context, moe: Moe, x: Value) -> Value:
    """Run Command A's experts: the mean of the routed and the shared output, [tokens, hidden]."""
    routed = routed_experts(ctx, moe, x)
    if not moe.shared.width:
        return routed
    both = _with_shared(ctx, moe, x, routed)
    del routed
    return scale(ctx.tape, both, "average")


def summed_wide(ctx: Context, moe: Moe, x: Value) -> Value:
    """Run Hy 3's experts: routed and shared outputs are added in fp32, and the sum is cast back.

    ``x``: [tokens, hidden]. Source: modeling_hy_v3.py.
    """
    routed = routed_experts(ctx, moe, x)
    narrow, routed = routed.dtype, cast(ctx.tape, routed, "fp32")
    both = _with_shared(ctx, moe, x, routed)
    del routed
    return cast(ctx.tape, both, narrow)


def noisy(ctx: Context, moe: Moe, x: Value) -> Value:
    """Run Phi 3.5's experts: the input of router and experts is multiplied by uniform noise in training.

    Source: modeling_phimoe.py, PhimoeSparseMoeBlock.
    """
    return usual_moe(ctx, moe, x, lambda c, e, v: routed_experts(c, e, v, before=_noised))


def _noised(tape: Tape, x: Value) -> Value:
    """Compute ``hidden_states *= torch.empty_like(hidden_states).uniform_(...)``, in the block and again in its
    router.
    """
    for _ in range(2):
        x = _times_noise(tape, x)
    return x


def _times_noise(tape: Tape, x: Value) -> Value:
    noise = tape.new(x.shape, x.dtype, "noise")
    return operator(tape, Value(x.storage, x.shape, x.dtype), x, "mul_ backward", saves=(noise,))


def between_projections(ctx: Context, moe: Moe, x: Value) -> Value:
    """Run Nemotron-H's experts, which work between two projections to and from a smaller width."""

    def run(ctx: Context, moe: Moe, x: Value) -> Value:
        down = next(t for t in moe.tensors if "fc1_latent_proj" in t.name)
        up = next(t for t in moe.tensors if "fc2_latent_proj" in t.name)
        return routed_experts(ctx, moe, x, around=[down, up])

    return usual_moe(ctx, moe, x, run)


def routed_experts(
    ctx: Context, moe: Moe, x: Value, *, before: Step | None = None, around: Sequence[ParameterTensor] = ()
) -> Value:
    """Run router and routed experts, without shared experts. ``x``: [tokens, hidden]; so is what is returned.

    ``before``: an operation on the input of router and experts. ``around``: the matrices of two projections, before and
    after the experts (latent experts).
    """
    expert_input = enter_tensor_parallel(ctx, x)
    del x
    if before is not None:
        expert_input = before(ctx.tape, expert_input)
    choice = route(ctx, moe, expert_input)
    if around:
        expert_input = linear(ctx.tape, expert_input, ctx.replicated(around[0]), around[0].name)
    if ctx.setting.dispatcher and ctx.setting.expert_parallel > 1:
        from memcheck.frameworks.transformers.expert_parallel import dispatched_experts

        out = dispatched_experts(ctx, moe, expert_input, choice.scores)
    elif moe.looped:
        from memcheck.frameworks.transformers.looped_experts import looped_experts

        out = looped_experts(ctx, moe, expert_input, choice.scores)
    else:
        out = experts(ctx, moe, expert_input, choice.scores, choice.indices)
    del expert_input
    if around:
        out = linear(ctx.tape, out, ctx.replicated(around[1]), around[1].name)
    return leave_tensor_parallel(ctx, out)


def experts_beside(ctx: Context, moe: Moe, x: Value, stream: Value) -> Value:
    """Run Gemma 4's feed-forward half: a dense network and routed experts, each with its own norms, added.

    ``x``: the normed input of the dense network. ``stream``: the residual stream, which router and experts norm
    themselves. Both are [tokens, hidden]. The router scales its input by a learned vector (Gemma4TextRouter).
    """
    tape = ctx.tape
    hidden = stream.shape[-1]

    def normed(name: str, value: Value) -> Value:
        return normalise(ctx, Norm("rmsnorm-fp32-weight", hidden), value, name)

    if ctx.setting.dispatcher and ctx.setting.expert_parallel > 1:
        from memcheck.frameworks.transformers.expert_parallel import require_whole_experts

        require_whole_experts(ctx, moe)
    dense = normed("post_feedforward_layernorm_1", mlp(ctx, shared_mlp(moe), x))
    choice = route(ctx, moe, stream)
    routed = experts(ctx, moe, normed("pre_feedforward_layernorm_2", stream), choice.scores, choice.indices)
    routed = normed("post_feedforward_layernorm_2", routed)
    return add(tape, dense, routed, "dense + routed")


def _gated_shared(ctx: Context, moe: Moe, x: Value) -> Value:
    """Run Qwen2-MoE's and Qwen3-Next's experts: a sigmoid of one score per token weights the shared expert's output.

    ``x``: [tokens, hidden]. The shared expert runs first, so that its output is alive during the routed experts.
    """
    tape = ctx.tape
    shared = mlp(ctx, shared_mlp(moe), x)
    routed = routed_experts(ctx, moe, x)
    gate_matrix = next(t for t in moe.tensors if t.shape == (1, ctx.hidden))
    gate = unary(tape, linear(tape, x, ctx.replicated(gate_matrix), gate_matrix.name), "sigmoid")
    weighted = mul(tape, gate, shared)
    return add(tape, routed, weighted, "routed + shared")


def shared_mlp(moe: Moe) -> Mlp:
    """Return the shared experts as one dense network, as wide as all of them together."""
    tensors = tuple(t for t in moe.tensors if t.group == "shared_experts")
    fused = len(tensors) == 2 and moe.gated
    return Mlp(
        moe.shared.width,
        moe.gated,
        moe.activation,
        fused_gate_up=fused,
        tensors=tensors,
        adaptable=moe.adaptable,
        clamp=moe.clamp,
        bias=False,
    )


def experts(ctx: Context, moe: Moe, x: Value, scores: Value, indices: Storage) -> Value:
    """Replay ``grouped_mm_experts_forward``: sort tokens by expert, gather them, run up, gate and down, weight, and
    sum.

    ``x``: [tokens, hidden]; so is what is returned. ``scores``, ``indices``: [tokens, experts_per_token], of the
    router. Between them are rows of [tokens * experts_per_token, width]. Source: transformers 5.23 integrations/moe.py.
    """
    tape = ctx.tape
    hidden, input_dtype = x.shape[-1], x.dtype
    experts_per_token = moe.experts_per_token
    rows = Dim(x.shape[0] * experts_per_token, "T*K")
    width = ceil_div(moe.width, ctx.setting.expert_tensor_parallel)
    local_experts = ceil_div(moe.experts, ctx.setting.expert_parallel)
    up_tensor, down_tensor = expert_tensors(moe)
    outputs = 2 * width if moe.gated else width
    up_shape, down_shape = (local_experts, outputs, hidden), (local_experts, hidden, width)
    weights = expert_weights(ctx, moe, {up_tensor: up_shape, down_tensor: down_shape})
    ids = tape.new((rows,), "int64", "sorted expert ids")
    order = tape.new((rows,), "int64", "sort order")
    token_of_row = tape.new((rows,), "int64", "token of each row")
    gathered = index(tape, x, token_of_row, (rows, hidden), "gather tokens")
    row_weights = index(tape, scores.view(rows), order, (rows,), "gather scores")
    _histogram = tape.new((rows,), "int32", "expert ids for histc")
    offsets = tape.new((local_experts,), "int32", "group offsets")
    biases = _row_bias(ctx, moe, up_tensor, ids, outputs)
    weight = weights(up_tensor)
    inner = _grouped_product(ctx, gathered, weight, up_tensor, offsets)
    if biases is not None:
        inner = add_in_place(tape, inner, biases)
    inner = gate(tape, moe, inner) if moe.gated else activation(tape, inner, moe.activation)
    biases = _row_bias(ctx, moe, down_tensor, ids, hidden)
    weight = weights(down_tensor)
    out = _grouped_product(ctx, inner, weight, down_tensor, offsets)
    del inner, weight
    if biases is not None:
        out = add_in_place(tape, out, biases)
    weighted = mul(tape, out, row_weights.view(rows, 1))
    inverse = tape.new((rows,), "int64", "inverse order")
    weighted = index(tape, weighted, inverse, (rows, hidden), "restore order")
    total = sum_groups(tape, weighted, experts_per_token)
    return cast(tape, total, input_dtype)


def expert_tensors(moe: Moe) -> tuple[ParameterTensor, ParameterTensor]:
    """Return the stacked matrices of all experts: up (with gate), and down."""
    matrices = [t for t in moe.tensors if t.group == "experts" and not t.name.endswith("_bias")]
    return matrices[0], matrices[-1]


def expert_weights(
    ctx: Context, moe: Moe, shapes: dict[ParameterTensor, tuple[int, int, int]]
) -> Callable[[ParameterTensor], Value]:
    """Return a function from a parameter to the stacked matrices of this rank's experts.

    They are dequantised, and their LoRA adapter is merged. ``shapes``: of each parameter on this rank. A merged matrix
    lives as long as the returned function: peft's and bitsandbytes' parametrizations cache it to the end of the
    experts' forward.
    """
    made: list[Value] = []
    if ctx.setting.adapter is not None and ctx.setting.adapter.quantizes_stacked_experts:
        adapted = AdaptedExperts(ctx, shapes, moe)

        def dequantised_weight(tensor: ParameterTensor) -> Value:
            made.append(adapted.weight(ctx, tensor, shapes[tensor]))
            return made[-1]

        return dequantised_weight
    adapters = {t.name: factors_of(ctx, moe, t, ctx.setting.param_dtype) for t in shapes}

    def merged_weight(tensor: ParameterTensor) -> Value:
        """Return a stacked weight, or, if it has adapters, a new tensor of their sum."""
        weight, factors = ctx.tape.parameter(ctx.parameter(tensor.name, shapes[tensor])), adapters[tensor.name]
        if factors is None:
            return weight
        made.append(folded(ctx.tape, weight, factors))
        return made[-1]

    return merged_weight


def _grouped_product(ctx: Context, x: Value, weight: Value, tensor: ParameterTensor, offsets: Storage) -> Value:
    """Multiply rows sorted by expert with their experts' matrices: [rows, inputs] to [rows, outputs]."""
    tape = ctx.tape
    x = cast(tape, x, weight.dtype)  # grouped_mm is not an autocast operator: the input follows the weight
    experts, outputs, inputs = weight.shape
    return grouped_mm(tape, x, weight, outputs, offsets, tensor.name, (experts, outputs, inputs))


def _row_bias(ctx: Context, moe: Moe, tensor: ParameterTensor, ids: Storage, width: int) -> Value | None:
    """Compute ``bias[expert_ids]``: one row per routed token."""
    if not moe.bias:
        return None
    bias = ctx.tape.parameter(ctx.parameter(tensor.name + "_bias", (tensor.shape[0], width)))
    return index(ctx.tape, bias, ids, (ids.shape[0], width), "gather biases")


def gate(tape: Tape, moe: Moe, gate_and_up: Value) -> Value:
    """Compute ``act(gate) * up`` on the two halves of one tensor, [rows, 2 * width], which stays alive.

    Returns [rows, width]. GPT-OSS interleaves gate and up, and clamps both.
    """
    half = (gate_and_up.shape[0], gate_and_up.shape[1] // 2)
    if moe.clamp == "interleaved":
        return _clamped_gate(tape, gate_and_up, half)
    gate_half, up_half = tape.views(gate_and_up, half, half)
    del gate_and_up
    if moe.clamp:
        return clamped(tape, moe, gate_half, up_half)
    return mul(tape, activation(tape, gate_half, moe.activation), up_half)


def _clamped_gate(tape: Tape, gate_and_up: Value, half: tuple[int, int]) -> Value:
    """Replay GptOssExperts._apply_gate: ``(up + 1) * gate * sigmoid(alpha * gate)`` of clamped, interleaved columns."""
    gate_half, up_half = slices(tape, gate_and_up, half, half)
    del gate_and_up
    gate_half = clamp(tape, gate_half, 1)
    up_half = clamp(tape, up_half, 2)
    glu = mul(tape, gate_half, unary(tape, scale(tape, gate_half), "sigmoid"))
    return mul(tape, shift(tape, up_half), glu)
