"""Gated delta nets under Megatron (Qwen 3 Next and 3.5): Megatron-core's module, and mcore-bridge's forward of it.

A delta net over a context group: every rank gets some heads of all tokens, and gives its tokens of all heads back.

Sources: Megatron-core ``ssm/gated_delta_net/common.py`` (a2a_cp_to_hp, a2a_hp_to_cp), ``ssm/mamba_context_parallel.py``
(_undo_attention_load_balancing, _redo_attention_load_balancing) and ``tensor_parallel/mappings.py``
(all_to_all_sp2hp, all_to_all_hp2sp) at commit d98e8a64dd. Each step makes one tensor, and one of its gradient.

flash-linear-attention's kernels of a gated delta net: what each keeps, and what its backward makes.

Sources: flash-linear-attention 0.5 ``modules/conv/triton/ops.py`` (CausalConv1dFunction, causal_conv1d_bwd),
``modules/l2norm.py`` (L2NormFunction), ``ops/gated_delta_rule/chunk.py`` (ChunkGatedDeltaRuleFunction,
chunk_gated_delta_rule_bwd), ``chunk_fwd.py``, ``wy_fast.py``, ``ops/common/chunk_delta_h.py``, ``chunk_o.py``.

Sources: Megatron-core ``ssm/gated_delta_net/gdn.py`` (GatedDeltaNet.forward) and ``common.py``
(_prepare_input_for_gated_delta_rule, _apply_gated_norm), ``experimental_attention_variant_module_specs.py`` (one input
projection, which does the norm before it); mcore-bridge 1.2 ``model/modules/gated_delta_net.py``.

Heads are divided by the tensor ranks, and by the context ranks in between; a rank's rule sees all tokens. Variables
live as in those functions: to the end of the layer's forward. Both run the gated norm under ``jit_fuser``, which is
``torch.compile``: the gate's product keeps the normalised output and the gate, and computes the rest again.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.operator import add_bias, cast, copy, mul, operator, scale, unary
from memcheck.autograd.tensor import Parameter, Storage, Tape, Value, ceil_div
from memcheck.errors import UnsupportedError
from memcheck.frameworks.megatron.bridge_adapters import is_bridged
from memcheck.frameworks.megatron.linear import Projection, column, norm, projection, quantizes, row, uses_te
from memcheck.frameworks.megatron.recompute import Discarded
from memcheck.models.types import Mixer, Norm
from memcheck.record import Record


def to_heads(tape: Tape, x: Value, context_ranks: int) -> Value:
    """Exchange [this rank's tokens, all heads] for [all tokens, this rank's heads] over the context group.

    The caller's variable still holds ``x``. ``context_ranks``: context ranks.
    """
    ordered = _reorder(tape, x, x.shape, "index_select of heads")
    shape = (x.shape[0] * context_ranks, x.shape[1] // context_ranks)
    by_rank = _reorder(tape, ordered, x.shape, "cat of heads")
    exchanged = _reorder(tape, by_rank, shape, "all-to-all")
    del by_rank
    return _reorder(tape, exchanged, shape, "tokens in order")


def to_tokens(tape: Tape, x: Value, context_ranks: int) -> Value:
    """Exchange [all tokens, this rank's heads] for [its tokens, all heads] over the context group.

    ``context_ranks``: ranks of that group.
    """
    balanced = _reorder(tape, x, x.shape, "tokens by rank")
    exchanged = _reorder(tape, balanced, x.shape, "all-to-all")
    return _reorder(tape, exchanged, (x.shape[0] // context_ranks, x.shape[1] * context_ranks), "cat of heads")


def _reorder(tape: Tape, x: Value, shape: tuple[int, ...], label: str) -> Value:
    """Copy the elements of ``x`` into another order; backward copies the gradient and needs nothing saved."""
    return operator(tape, tape.value(shape, x.dtype, label), x, label + " backward")


CHUNK = 64
"""Tokens of a chunk: of the rule, and of the convolution's backward."""


class Heads(Record):
    """The heads of one delta net on this rank. Queries and keys have been repeated to as many as the values have."""

    number: int
    key_width: int
    """Width of one head's queries and keys."""
    value_width: int
    """Width of one head's values."""


def chunks(ctx: Context, context_ranks: int) -> int:
    """Return the number of chunks of all sequences of a micro-batch. ``context_ranks``: those that cut the sequence."""
    return ctx.batch * ceil_div(ctx.sequence * context_ranks, CHUNK)


def convolution(ctx: Context, x: Value, weight: Parameter, context_ranks: int = 1) -> Value:
    """Compute the causal convolution with SiLU (fla's causal_conv1d), which saves its input [tokens, channels].

    Backward computes the convolution again, and sums the weight's gradient over chunks of tokens in fp32.
    ``context_ranks``: ranks among which the channels are divided; each copies its slice of the weight.
    """
    tape = ctx.tape
    local_shape = (weight.shape[0] // context_ranks, *weight.shape[1:])
    local_weight = tape.new(local_shape, weight.dtype, "conv1d weight of own heads") if context_ranks > 1 else None
    out = tape.value(x.shape, x.dtype, "causal_conv1d")
    shape, dtype, chunk_shape = x.shape, x.dtype, (chunks(ctx, context_ranks), *local_shape)

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: the convolution again, dX, and dW summed over chunks."""
        recomputed = tape.new(shape, dtype, "causal_conv1d again")
        dx = tape.new(shape, dtype, "causal_conv1d backward")
        chunk_gradients = tape.new(chunk_shape, "fp32", "causal_conv1d dW of chunks")
        fp32_gradient = tape.new(local_shape, "fp32", "causal_conv1d dW")
        del chunk_gradients
        dw = tape.new(weight.shape, weight.dtype, "causal_conv1d dW")
        del fp32_gradient, recomputed
        return [dx, dw if weight.requires_grad else None]

    return tape.record(out, (x, tape.parameter(weight)), run, saves=(x.storage, local_weight))


def l2norm(ctx: Context, x: Value, heads: int) -> Value:
    """Normalise each head to length one; saves the output and one fp32 number per head and token."""
    tape = ctx.tape
    out = tape.value(x.shape, x.dtype, "l2norm")
    kept = (out.storage, tape.new((x.shape[0], heads), "fp32", "l2norm rstd"))
    return operator(tape, out, x, "l2norm backward", saves=kept)


def gated_delta_rule(
    ctx: Context, heads: Heads, inputs: tuple[Value, Value, Value, Value, Value], context_ranks: int = 1
) -> Value:
    """Compute fla's chunked gated delta rule (chunk_gated_delta_rule): [tokens, heads * value].

    ``inputs``: queries and keys [tokens, heads * key], values [tokens, heads * value], decay (fp32) and beta [tokens,
    heads]. ``heads``: their number, and their key and value widths. Saves its inputs except the decay, the decay's sum
    within each chunk, and each chunk's inverse matrix. Backward computes the states between chunks again, and their
    gradients. ``context_ranks``: ranks that divide the heads; each has all tokens of the sequence.
    """
    tape = ctx.tape
    query, key, value, _, beta = inputs
    shapes = _RuleShapes(
        key=(query.shape[0], heads.number * heads.key_width),
        value=(query.shape[0], heads.number * heads.value_width),
        head=(query.shape[0], heads.number),
        state=(chunks(ctx, context_ranks), heads.number, heads.key_width, heads.value_width),
        dtype=query.dtype,
    )
    summed_decay = tape.new(shapes.head, "fp32", "decay summed in chunks")  # chunk_local_cumsum
    inverses = tape.new((*shapes.head, CHUNK), shapes.dtype, "inverses of chunks")  # chunk_gated_delta_rule_fwd_intra
    states = _states_between_chunks(tape, shapes)
    out = tape.value(shapes.value, shapes.dtype, "delta rule")  # chunk_fwd_o
    del states
    saved = (query.storage, key.storage, value.storage, beta.storage, summed_decay, inverses)
    del summed_decay, inverses
    return tape.record(out, inputs, lambda grad: _delta_rule_backward(tape, shapes), saves=saved)


class _RuleShapes(Record):
    """Shapes of the delta rule's tensors on this rank, and the dtype of all but the decays."""

    key: tuple[int, ...]
    """Queries or keys: [tokens, heads * key]."""
    value: tuple[int, ...]
    """Values: [tokens, heads * value]."""
    head: tuple[int, ...]
    """One number per head: [tokens, heads]."""
    state: tuple[int, ...]
    """The states between chunks: [chunks, heads, key, value]."""
    dtype: str


def _states_between_chunks(tape: Tape, shapes: _RuleShapes) -> list[Storage]:
    """Allocate what recompute_w_u_fwd and chunk_gated_delta_rule_fwd_h return."""
    return [
        tape.new(shapes.key, shapes.dtype, "w"),
        tape.new(shapes.value, shapes.dtype, "u"),
        tape.new(shapes.state, shapes.dtype, "states of chunks"),
        tape.new(shapes.value, shapes.dtype, "new values"),
    ]


def _delta_rule_backward(tape: Tape, shapes: _RuleShapes) -> list[Storage | None]:
    """Run chunk_gated_delta_rule_bwd, kernel by kernel: return the gradients of q, k, v, the decay and beta.

    Every local variable lives until the function returns. One that is assigned again frees its earlier tensor.
    """
    key, value, head, state, dtype = shapes
    local_variables = _states_between_chunks(tape, shapes)  # computed again
    dv_in_chunks = tape.new(value, dtype, "dv in chunks")  # chunk_bwd_dv_local
    local_variables.append(tape.new(state, dtype, "gradients of states"))  # chunk_gated_delta_rule_bwd_dhu
    dv = tape.new(value, dtype, "dv")
    del dv_in_chunks  # `dv` is assigned again
    dq, dk = tape.new(key, dtype, "dq"), tape.new(key, dtype, "dk")  # chunk_bwd_dqkwg
    dg = tape.new(head, "fp32", "dg")
    local_variables.append(tape.new(key, dtype, "dw"))
    dg = tape.new(head, "fp32", "dg")
    local_variables.append(tape.new(key, dtype, "dk of w"))  # prepare_wy_repr_bwd
    dv_of_w = tape.new(value, dtype, "dv of w")
    local_variables.append(tape.new(head, "fp32", "dg of w"))
    db = tape.new(head, dtype, "dbeta")
    del dv  # assigned again
    dg = tape.new(head, "fp32", "dg summed")  # chunk_local_cumsum
    del local_variables
    return [dq, dk, dv_of_w, dg, db]


KIND = "gated-delta-net"
Inputs = tuple[Value, Value, Value, Value, Value]
"""Queries, keys, values, decay, beta: what the rule takes."""


class DeltaWidths(Record):
    """One delta net's dimensions on this rank."""

    key_heads: int
    value_heads: int
    key_width: int
    value_width: int

    @property
    def keys(self) -> int:
        """Columns of all queries, or of all keys."""
        return self.key_heads * self.key_width

    @property
    def values(self) -> int:
        """Columns of all values."""
        return self.value_heads * self.value_width

    @property
    def mixed(self) -> int:
        """Columns that are convolved."""
        return 2 * self.keys + self.values

    @property
    def width(self) -> int:
        """Columns of the input projection: q, k, v, gate, beta, alpha."""
        return self.mixed + self.values + 2 * self.value_heads


def local_widths(mixer: Mixer, tensor: int, context: int = 1) -> DeltaWidths:
    """Return a delta net's widths on one rank, over ``tensor`` tensor ranks and ``context`` context ranks.

    Raises:
        UnsupportedError: the ranks do not divide its heads (transformer_config.py, __post_init__).
    """
    key_heads, ranks = mixer.key_heads or mixer.heads, tensor * context
    for heads in (key_heads, mixer.heads):
        if heads % ranks:
            degree = "context" if context > 1 else "tensor"
            message = f"{heads} heads of a delta net are not divided by {ranks} tensor and context ranks"
            raise UnsupportedError(message, f"choose a divisor of {heads}", f"/parallelism/{degree}")
    return DeltaWidths(
        key_heads=key_heads // ranks,
        value_heads=mixer.heads // ranks,
        key_width=mixer.key_dim,
        value_width=mixer.head_dim,
    )


def demand_delta_net(ctx: Context, sizes: DeltaWidths) -> None:
    """Check that Megatron builds such a layer and that its tensors are known.

    Raises:
        UnsupportedError: Megatron does not, or what it then allocates has no memory model.
    """
    setting = ctx.setting
    if not uses_te(setting):
        message = "Megatron-core builds gated delta nets of TransformerEngine's modules alone"
        raise UnsupportedError(message, "set it to transformer_engine", "/training/options/transformer_impl")
    if setting.context_parallel > 1 and is_bridged(setting):
        message = "mcore-bridge's exchange of heads and tokens of a delta net's context group has no memory model"
        raise UnsupportedError(message, "set it to 1", "/parallelism/context")
    if quantizes(setting) and sizes.width * ctx.tp % 16:
        message = f"a delta net's projection to {sizes.width * ctx.tp} columns is no multiple of 16, which fp8 demands"
        raise UnsupportedError(message, "choose bf16-mixed", "/training/precision")


def delta_net(
    ctx: Context, mixer: Mixer, x: Value, spec: Norm | None, modules: tuple[str, ...]
) -> tuple[Value, Projection]:
    """Compute a gated delta net's output [tokens, hidden], and return its output projection with it.

    ``spec``: the input norm, which the input projection applies. ``modules``: those that selective recompute runs
    again, of which Megatron-core's own forward knows ``gdn_norm_out``.
    """
    widths = local_widths(mixer, ctx.tp)
    demand_delta_net(ctx, widths)
    in_proj = projection(ctx, "self_attention.in_proj", widths.width, ctx.hidden)
    out_proj = projection(ctx, "self_attention.out_proj", ctx.hidden, widths.values, adds=False)
    projected = column(ctx, x, in_proj, "in_proj", spec)
    context_ranks = ctx.setting.context_parallel
    if context_ranks > 1:  # from here on every rank has some heads of all tokens
        widths, projected = local_widths(mixer, ctx.tp, context_ranks), to_heads(ctx.tape, projected, context_ranks)
    rule = _rule_inputs(ctx, mixer, widths, projected)
    out = gated_delta_rule(
        ctx, Heads(widths.value_heads, widths.key_width, widths.value_width), rule.inputs, context_ranks
    )
    head_norm = _head_norm(widths, spec)
    discarded = Discarded(ctx) if "gdn_norm_out" in modules and not is_bridged(ctx.setting) else None
    if discarded is not None:
        (out,) = discarded.run(
            lambda ctx, inputs: (_gated_norm(ctx, widths, head_norm, *inputs),), (out, rule.output_gate)
        )
    else:
        out = _gated_norm(ctx, widths, head_norm, out, rule.output_gate)
    result = row(ctx, out, out_proj, "out_proj")
    if discarded is not None:
        result = discarded.discard(result)
    return result, out_proj


class _RuleInputs(Record):
    """What a delta net computes before its rule."""

    inputs: Inputs
    output_gate: Value
    """The gate of the rule's output, [tokens, values]."""
    forward_locals: tuple[Value, ...]
    """The convolved q, k and v, and alpha: variables of the layer's forward, which live until it returns."""


def _rule_inputs(ctx: Context, mixer: Mixer, widths: DeltaWidths, projected: Value) -> _RuleInputs:
    """Split the joint projection [tokens, width] of this rank, and compute from its parts what the rule takes."""
    rows, bridged = projected.shape[0], is_bridged(ctx.setting)
    qkv, gate, beta, alpha = ctx.tape.views(
        projected, (rows, widths.mixed), (rows, widths.values), (rows, widths.value_heads), (rows, widths.value_heads)
    )
    if bridged:  # heads of different groups are not adjacent: each reshape is a copy
        gate, beta, alpha = (copy(ctx.tape, t, "reshape") for t in (gate, beta, alpha))
        qkv = copy(ctx.tape, qkv, "reshape qkv") if widths.key_heads > 1 else qkv
    context_ranks = ctx.setting.context_parallel
    conv_weight = ctx.parameter("self_attention.conv1d.weight", (widths.mixed * context_ranks, mixer.kernel))
    qkv = convolution(ctx, qkv, conv_weight, context_ranks)
    if bridged:
        return _RuleInputs(_bridged_inputs(ctx, widths, qkv, beta, alpha), gate, (qkv, alpha))
    inputs = _prepared_inputs(ctx, widths, qkv, beta, alpha)
    return _RuleInputs(inputs, copy(ctx.tape, gate, "contiguous gate"), (qkv, alpha))


def _prepared_inputs(ctx: Context, widths: DeltaWidths, qkv: Value, beta: Value, alpha: Value) -> Inputs:
    """Compute the rule's inputs under ``torch.compile``: queries and keys are normalised together.

    Source: ``_prepare_input_for_gated_delta_rule``. The decay saves what it is computed from, a view of the joint
    projection.
    """
    tape, rows = ctx.tape, qkv.shape[0]
    query_key, value = tape.views(qkv, (rows, 2 * widths.keys), (rows, widths.values))
    query_key = l2norm(ctx, copy(tape, query_key, "contiguous q, k"), 2 * widths.key_heads)
    query, key = tape.views(query_key, (rows, widths.keys), (rows, widths.keys))
    query, key = (_repeat_heads(ctx, widths, t) for t in (query, key))
    decay = _compiled_decay(ctx, alpha, ctx.setting.context_parallel)
    return query, key, copy(tape, value, "contiguous v"), decay, unary(tape, beta, "sigmoid")


def _bridged_inputs(ctx: Context, widths: DeltaWidths, qkv: Value, beta: Value, alpha: Value) -> Inputs:
    """Compute the rule's inputs operator by operator (mcore-bridge); queries and keys are normalised separately."""
    tape, rows = ctx.tape, qkv.shape[0]
    query, key, value = tape.views(qkv, (rows, widths.keys), (rows, widths.keys), (rows, widths.values))
    repeats = widths.value_heads > widths.key_heads
    copies_value_first = repeats and widths.key_heads > 1
    value = copy(tape, value, "reshape v") if copies_value_first else value
    query = l2norm(ctx, copy(tape, query, "contiguous q"), widths.key_heads)
    key = l2norm(ctx, copy(tape, key, "contiguous k"), widths.key_heads)
    if repeats:
        query, key = _repeat_heads(ctx, widths, query), _repeat_heads(ctx, widths, key)
    value = value if copies_value_first else copy(tape, value, "contiguous v")
    a_log, dt_bias = (ctx.parameter(f"self_attention.{name}", (widths.value_heads,)) for name in ("A_log", "dt_bias"))
    rate = scale(tape, unary(tape, tape.parameter(a_log), "exp"), "neg")
    step = add_bias(tape, cast(tape, alpha, "fp32"), tape.parameter(dt_bias))
    decay = mul(tape, rate, unary(tape, step, "softplus"))
    return query, key, value, decay, unary(tape, beta, "sigmoid")


def _repeat_heads(ctx: Context, sizes: DeltaWidths, x: Value) -> Value:
    """Compute ``repeat_interleave`` of queries or keys to as many heads as there are of values; else a contiguous
    copy.
    """
    tape = ctx.tape
    if sizes.value_heads == sizes.key_heads:
        return copy(tape, x, "contiguous")
    return operator(
        tape, tape.value((x.shape[0], sizes.value_heads * sizes.key_width), x.dtype, "repeat_interleave"), x, "sum"
    )


def _compiled_decay(ctx: Context, alpha: Value, context_ranks: int) -> Value:
    """Compute ``-A_log.exp() * softplus(alpha.float() + dt_bias)`` [tokens, heads] in one compiled kernel.

    Saves alpha and the two vectors. ``context_ranks``: context ranks; the vectors have the heads of all of them.
    """
    tape = ctx.tape
    vectors = [
        ctx.parameter(f"self_attention.{name}", (alpha.shape[-1] * context_ranks,)) for name in ("A_log", "dt_bias")
    ]
    out = tape.value(alpha.shape, "fp32", "decay")
    return operator(tape, out, (alpha, *map(tape.parameter, vectors)), "decay backward", saves=(alpha,))


def _head_norm(sizes: DeltaWidths, spec: Norm | None) -> Norm:
    """Return the norm of each head, of the same kind as the layer's input norm."""
    if spec is not None and spec.kind.startswith("layernorm"):
        return Norm("layernorm", sizes.value_width, bias=True)
    return Norm("rmsnorm", sizes.value_width)


def _gated_norm(ctx: Context, sizes: DeltaWidths, spec: Norm, x: Value, gate: Value) -> Value:
    """Compute TE's norm of each head, then ``norm * silu(gate.float())`` in one compiled kernel: [tokens, values].

    Batches are then transposed back to sequence first, and heads exchanged for tokens over the context group.
    """
    tape, rows = ctx.tape, x.shape[0]
    head_rows = (rows * sizes.value_heads, sizes.value_width)
    normed = norm(ctx, spec, x.view(*head_rows), "self_attention.out_norm").view(*x.shape)
    out = tape.value(x.shape, x.dtype, "gated norm")
    shape, dtype = x.shape, x.dtype
    out = operator(
        tape,
        out,
        (normed, gate),
        [(shape, dtype, "gated norm backward"), (shape, dtype, "gate backward")],
        saves=(normed, gate),
    )
    del normed
    out = copy(tape, out, "transpose(0, 1).contiguous()") if ctx.batch > 1 else out
    return to_tokens(tape, out, ctx.setting.context_parallel) if ctx.setting.context_parallel > 1 else out
