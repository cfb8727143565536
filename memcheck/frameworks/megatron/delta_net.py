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
from memcheck.autograd.elementwise import add_bias, cast, copy, mul, scale, unary
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Parameter, Storage, Tape, Value
from memcheck.errors import UnsupportedError
from memcheck.frameworks.megatron.bridge_adapters import is_bridged
from memcheck.frameworks.megatron.linear import Projection, column, norm, projection, quantizes, row, uses_te
from memcheck.frameworks.megatron.recompute import Discarded
from memcheck.models.types import Mixer, Norm
from memcheck.record import Record


def to_heads(tape: Tape, x: Value, ways: int) -> Value:
    """[tokens of this rank, all heads] to [all tokens, heads of this rank]. The caller's variable holds ``x``."""
    ordered = _moved(tape, x, x.shape, "index_select of heads")
    shape = (x.shape[0] * ways, x.shape[1] // ways)
    apart = _moved(tape, ordered, x.shape, "cat of heads")
    exchanged = _moved(tape, apart, shape, "all-to-all")
    del apart
    return _moved(tape, exchanged, shape, "tokens in order")


def to_tokens(tape: Tape, x: Value, ways: int) -> Value:
    """[all tokens, heads of this rank] to [tokens of this rank, all heads]."""
    balanced = _moved(tape, x, x.shape, "tokens by rank")
    exchanged = _moved(tape, balanced, x.shape, "all-to-all")
    return _moved(tape, exchanged, (x.shape[0] // ways, x.shape[1] * ways), "cat of heads")


def _moved(tape: Tape, x: Value, shape: tuple[int, ...], label: str) -> Value:
    """Another order of the same elements; keeps nothing."""
    return operator(tape, tape.value(shape, x.dtype, label), x, label + " backward")


CHUNK = 64
"""Tokens of a chunk: of the rule, and of the convolution's backward."""


class Heads(Record):
    """The heads of one delta net on this rank. Queries and keys have been repeated to as many as the values have."""

    number: int
    key: int
    """Width of one head's queries and keys."""
    value: int


def chunks(ctx: Context, ways: int) -> int:
    """Chunks of all sequences of this micro-batch. ``ways``: context ranks over which these are cut outside."""
    return ctx.batch * -(-ctx.sequence * ways // CHUNK)


def convolution(ctx: Context, x: Value, weight: Parameter, ways: int = 1) -> Value:
    """Convolution and SiLU: keeps its input; backward convolves it again, and sums the weight over chunks in fp32.

    ``ways``: context ranks, each of which copies its channels out of the weight.
    """
    tape = ctx.tape
    own = (weight.shape[0] // ways, *weight.shape[1:])
    local = tape.new(own, weight.dtype, "conv1d weight of own heads") if ways > 1 else None
    out = tape.value(x.shape, x.dtype, "causal_conv1d")
    shape, dtype, pieces = x.shape, x.dtype, (chunks(ctx, ways), *own)

    def run(grad: Storage) -> list[Storage | None]:
        again = tape.new(shape, dtype, "causal_conv1d again")
        dx = tape.new(shape, dtype, "causal_conv1d backward")
        parts = tape.new(pieces, "fp32", "causal_conv1d dW of chunks")
        total = tape.new(own, "fp32", "causal_conv1d dW")
        del parts
        dw = tape.new(weight.shape, weight.dtype, "causal_conv1d dW")
        del total, again
        return [dx, dw if weight.requires_grad else None]

    return tape.record(out, (x, tape.parameter(weight)), run, saves=(x.storage, local))


def l2norm(ctx: Context, x: Value, heads: int) -> Value:
    """Vectors of length one: keeps its output and a number of each row."""
    tape = ctx.tape
    out = tape.value(x.shape, x.dtype, "l2norm")
    kept = (out.storage, tape.new((x.shape[0], heads), "fp32", "l2norm rstd"))
    return operator(tape, out, x, "l2norm backward", saves=kept)


def gated_delta_rule(
    ctx: Context, heads: Heads, inputs: tuple[Value, Value, Value, Value, Value], ways: int = 1
) -> Value:
    """The chunked rule of queries, keys, values, decay (fp32) and beta: [tokens, heads * value].

    Kept: its inputs, the decay summed within chunks instead of the decay, and the inverse of each chunk. Backward makes
    the states between chunks again, and their gradients.
    """
    tape = ctx.tape
    q, k, v, _, beta = inputs
    rows, dtype = q.shape[0], q.dtype
    wide, narrow, each = (rows, heads.number * heads.key), (rows, heads.number * heads.value), (rows, heads.number)
    between = (chunks(ctx, ways), heads.number, heads.key, heads.value)
    summed = tape.new(each, "fp32", "decay summed in chunks")
    inverses = tape.new((rows, heads.number, CHUNK), dtype, "inverses of chunks")
    made = [tape.new(wide, dtype, "w"), tape.new(narrow, dtype, "u")]
    made += [tape.new(between, dtype, "states of chunks"), tape.new(narrow, dtype, "new values")]
    out = tape.value(narrow, dtype, "delta rule")
    del made
    kept = (q.storage, k.storage, v.storage, beta.storage, summed, inverses)
    del summed, inverses

    def run(grad: Storage) -> list[Storage | None]:
        again = [tape.new(wide, dtype, "w"), tape.new(narrow, dtype, "u")]
        again += [tape.new(between, dtype, "states of chunks"), tape.new(narrow, dtype, "new values")]
        local = tape.new(narrow, dtype, "dv in chunks")
        again.append(tape.new(between, dtype, "gradients of states"))
        dv = tape.new(narrow, dtype, "dv")
        del local
        dq, dk = tape.new(wide, dtype, "dq"), tape.new(wide, dtype, "dk")
        dg = tape.new(each, "fp32", "dg")
        again.append(tape.new(wide, dtype, "dw"))
        dg = tape.new(each, "fp32", "dg")
        again.append(tape.new(wide, dtype, "dk of w"))
        values = tape.new(narrow, dtype, "dv of w")
        again.append(tape.new(each, "fp32", "dg of w"))
        db = tape.new(each, dtype, "dbeta")
        del dv
        dg = tape.new(each, "fp32", "dg summed")
        del again
        return [dq, dk, values, dg, db]

    return tape.record(out, inputs, run, saves=kept)


KIND = "gated-delta-net"
Inputs = tuple[Value, Value, Value, Value, Value]
"""Queries, keys, values, decay, beta: what the rule takes."""


class DeltaWidths(Record):
    """One delta net's dimensions on this rank."""

    key_heads: int
    heads: int
    key: int
    value: int

    @property
    def keys(self) -> int:
        """Columns of all queries, or of all keys."""
        return self.key_heads * self.key

    @property
    def values(self) -> int:
        """Columns of all values."""
        return self.heads * self.value

    @property
    def mixed(self) -> int:
        """Columns that are convolved."""
        return 2 * self.keys + self.values

    @property
    def width(self) -> int:
        """Columns of the input projection: q, k, v, gate, beta, alpha."""
        return self.mixed + self.values + 2 * self.heads


def cut(mixer: Mixer, tensor: int, context: int = 1) -> DeltaWidths:
    """A net's dimensions over ``tensor`` tensor ranks, and over the context ranks that divide its heads further.

    Raises:
        UnsupportedError: they do not divide its heads (transformer_config.py, __post_init__).
    """
    keys, ways = mixer.key_heads or mixer.heads, tensor * context
    for heads in (keys, mixer.heads):
        if heads % ways:
            which = "context" if context > 1 else "tensor"
            message = f"{heads} heads of a delta net are not divided by {ways} tensor and context ranks"
            raise UnsupportedError(message, f"choose a divisor of {heads}", f"/parallelism/{which}")
    return DeltaWidths(key_heads=keys // ways, heads=mixer.heads // ways, key=mixer.key_dim, value=mixer.head_dim)


def demand_delta_net(ctx: Context, sizes: DeltaWidths) -> None:
    """Check that Megatron builds such a layer and that its tensors are known.

    Raises:
        UnsupportedError: Megatron does not, or what it then allocates has no memory model.
    """
    setting = ctx.setting
    if not uses_te(setting):
        message = "Megatron-core builds gated delta nets of TransformerEngine's modules alone"
        raise UnsupportedError(message, "set it to transformer_engine", "/training/options/transformer_impl")
    if setting.context > 1 and is_bridged(setting):
        message = "mcore-bridge's exchange of heads and tokens of a delta net's context group has no memory model"
        raise UnsupportedError(message, "set it to 1", "/parallelism/context")
    if quantizes(setting) and sizes.width * ctx.tp % 16:
        message = f"a delta net's projection to {sizes.width * ctx.tp} columns is no multiple of 16, which fp8 demands"
        raise UnsupportedError(message, "choose bf16-mixed", "/training/precision")


def delta_net(
    ctx: Context, mixer: Mixer, x: Value, spec: Norm | None, modules: tuple[str, ...]
) -> tuple[Value, Projection]:
    """The net's output and its output projection. ``spec``: the input norm, which the input projection does.

    ``modules``: those that selective recompute runs again, of which Megatron-core's own forward knows
    ``gdn_norm_out``.
    """
    sizes = cut(mixer, ctx.tp)
    demand_delta_net(ctx, sizes)
    owner = "self_attention."
    joint = column(ctx, x, projection(ctx, owner + "in_proj", sizes.width, ctx.hidden), "in_proj", spec)
    bridged, proj = is_bridged(ctx.setting), projection(ctx, owner + "out_proj", ctx.hidden, sizes.values, adds=False)
    ways = ctx.setting.context
    if ways > 1:  # from here on every rank has some heads of all tokens
        sizes, joint = cut(mixer, ctx.tp, ways), to_heads(ctx.tape, joint, ways)
    rows = joint.shape[0]
    mixed, gate, beta, alpha = ctx.tape.views(
        joint, (rows, sizes.mixed), (rows, sizes.values), (rows, sizes.heads), (rows, sizes.heads)
    )
    if bridged:  # heads of different groups are not adjacent: each reshape is a copy
        gate, beta, alpha = (copy(ctx.tape, t, "reshape") for t in (gate, beta, alpha))
        mixed = copy(ctx.tape, mixed, "reshape qkv") if sizes.key_heads > 1 else mixed
    taps = ctx.parameter(owner + "conv1d.weight", (sizes.mixed * ways, mixer.kernel))
    mixed = convolution(ctx, mixed, taps, ways)
    inputs = (_bridged_inputs if bridged else _prepared_inputs)(ctx, sizes, mixed, beta, alpha)
    del beta
    if not bridged:
        gate = copy(ctx.tape, gate, "contiguous gate")
    head_norm = _head_norm(sizes, spec)
    out = gated_delta_rule(ctx, Heads(sizes.heads, sizes.key, sizes.value), inputs, ways)
    dropped = Discarded(ctx) if "gdn_norm_out" in modules and not bridged else None
    if dropped is not None:
        (out,) = dropped.run(lambda c, t: (_gated_norm(c, sizes, head_norm, t[0], t[1]),), (out, gate))
    else:
        out = _gated_norm(ctx, sizes, head_norm, out, gate)
    result = row(ctx, out, proj, "out_proj")
    if dropped is not None:
        result = dropped.discard(result)
    return result, proj


def _prepared_inputs(ctx: Context, sizes: DeltaWidths, mixed: Value, beta: Value, alpha: Value) -> Inputs:
    """``_prepare_input_for_gated_delta_rule`` under ``torch.compile``: queries and keys are normalised together.

    The decay keeps what it is computed from, a view of the joint projection.
    """
    tape, rows = ctx.tape, mixed.shape[0]
    both, value = tape.views(mixed, (rows, 2 * sizes.keys), (rows, sizes.values))
    both = l2norm(ctx, copy(tape, both, "contiguous q, k"), 2 * sizes.key_heads)
    query, key = tape.views(both, (rows, sizes.keys), (rows, sizes.keys))
    query, key = (_repeated(ctx, sizes, t) for t in (query, key))
    decay = _decay(ctx, alpha, ctx.setting.context)
    return query, key, copy(tape, value, "contiguous v"), decay, unary(tape, beta, "sigmoid")


def _bridged_inputs(ctx: Context, sizes: DeltaWidths, mixed: Value, beta: Value, alpha: Value) -> Inputs:
    """What the rule takes, in operators one by one; queries and keys are normalised apart, too."""
    tape, rows = ctx.tape, mixed.shape[0]
    query, key, value = tape.views(mixed, (rows, sizes.keys), (rows, sizes.keys), (rows, sizes.values))
    repeats = sizes.heads > sizes.key_heads
    early = repeats and sizes.key_heads > 1
    value = copy(tape, value, "reshape v") if early else value
    query = l2norm(ctx, copy(tape, query, "contiguous q"), sizes.key_heads)
    key = l2norm(ctx, copy(tape, key, "contiguous k"), sizes.key_heads)
    if repeats:
        query, key = _repeated(ctx, sizes, query), _repeated(ctx, sizes, key)
    value = value if early else copy(tape, value, "contiguous v")
    a_log, dt_bias = (ctx.parameter(f"self_attention.{name}", (sizes.heads,)) for name in ("A_log", "dt_bias"))
    rate = scale(tape, unary(tape, tape.parameter(a_log), "exp"), "neg")
    step = add_bias(tape, cast(tape, alpha, "fp32"), tape.parameter(dt_bias))
    decay = mul(tape, rate, unary(tape, step, "softplus"))
    return query, key, value, decay, unary(tape, beta, "sigmoid")


def _repeated(ctx: Context, sizes: DeltaWidths, x: Value) -> Value:
    """``repeat_interleave`` of queries or keys to as many heads as there are of values; else a contiguous copy."""
    tape = ctx.tape
    if sizes.heads == sizes.key_heads:
        return copy(tape, x, "contiguous")
    return operator(tape, tape.value((x.shape[0], sizes.heads * sizes.key), x.dtype, "repeat_interleave"), x, "sum")


def _decay(ctx: Context, alpha: Value, ways: int) -> Value:
    """``-A_log.exp() * softplus(alpha.float() + dt_bias)``, compiled: keeps alpha and the two vectors.

    ``ways``: context ranks, of whose heads these are one part.
    """
    tape = ctx.tape
    vectors = [ctx.parameter(f"self_attention.{name}", (alpha.shape[-1] * ways,)) for name in ("A_log", "dt_bias")]
    out = tape.value(alpha.shape, "fp32", "decay")
    return operator(tape, out, (alpha, *map(tape.parameter, vectors)), "decay backward", saves=(alpha,))


def _head_norm(sizes: DeltaWidths, spec: Norm | None) -> Norm:
    """The norm of each head is of the kind of the layer's."""
    if spec is not None and spec.kind.startswith("layernorm"):
        return Norm("layernorm", sizes.value, bias=True)
    return Norm("rmsnorm", sizes.value)


def _gated_norm(ctx: Context, sizes: DeltaWidths, spec: Norm, x: Value, gate: Value) -> Value:
    """TE's norm of each head, then ``norm * silu(gate.float())`` compiled; batches then lie sequence first again."""
    tape, rows = ctx.tape, x.shape[0]
    heads = (rows * sizes.heads, sizes.value)
    normed = norm(ctx, spec, x.view(*heads), "self_attention.out_norm").view(*x.shape)
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
    return to_tokens(tape, out, ctx.setting.context) if ctx.setting.context > 1 else out
