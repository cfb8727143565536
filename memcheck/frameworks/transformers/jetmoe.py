"""JetMoE: experts of queries and outputs around attention, and of feed-forward networks. Rows are sorted by expert,
split, and put together again.

modeling_jetmoe.py of transformers 5.23: JetMoeTopKGating, JetMoeParallelExperts, JetMoeMoA, JetMoeMoE.
"""

from __future__ import annotations

from memcheck.autograd.attention import softmax
from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import add, cast, cat, mul
from memcheck.autograd.indexing import head_view, index, topk
from memcheck.autograd.matrix import linear
from memcheck.autograd.modules import activation
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Storage, Tape, Value
from memcheck.errors import UnsupportedError
from memcheck.frameworks.transformers.attend import attend
from memcheck.frameworks.transformers.looped_experts import MOST, added, picked_product
from memcheck.frameworks.transformers.rotary import apply_rotary
from memcheck.models.types import Attention, Moe, ParameterTensor
from memcheck.record import Record

Tensors = tuple[ParameterTensor, ...]


class Sorted(Record):
    """What a router returns: the order of rows by expert, the token of each, its weight, and the scores."""

    order: Storage
    tokens: Storage
    gates: Value
    logits: Value


def mixed_attention(ctx: Context, a: Attention, x: Value, stream: str) -> Value:
    """Each token's experts make its queries, a set of heads each, and read what these attended to."""
    tape, k = ctx.tape, a.heads // a.kv_heads
    _demand_whole(ctx)
    found = _route(ctx, a.tensors, x, a.choices, k)
    rows, width = (x.shape[0] * k, x.shape[1]), a.kv_heads * a.head_dim
    inputs = index(tape, x, found.tokens, rows, "gather tokens")
    made = _experts(ctx, _named(a.tensors, "input_linear.weight"), inputs, a.choices)
    q = _put_together(ctx, made, (rows[0], width), found.order)
    del inputs, made
    both = linear(tape, x, ctx.weights(_named(a.tensors, "kv_proj.weight"), False), "kv_proj")
    shape = (ctx.batch, a.kv_heads, ctx.sequence, a.head_dim)
    key, value = tape.views(head_view(tape, both, both.shape), shape, shape)
    del both
    q, key = apply_rotary(ctx, a, q.view(ctx.batch, a.heads, ctx.sequence, a.head_dim), key, stream)
    key, value = _repeated(tape, key, a.heads), _repeated(tape, value, a.heads)
    out = attend(ctx, a._replace(kv_heads=a.heads), q, key, value)
    del q, key, value
    inputs = index(tape, out.view(rows[0], width), found.order, (rows[0], width), "gather heads")
    made = _experts(ctx, _named(a.tensors, "output_linear.weight"), inputs, a.choices)
    made = mul(tape, made, found.gates.view(rows[0], 1))
    return _put_together(ctx, made, x.shape, found.tokens, _named(a.tensors, ".bias"))


def split_experts(ctx: Context, m: Moe, x: Value) -> Value:
    """The feed-forward experts."""
    tape, rows = ctx.tape, x.shape[0] * m.experts_per_token
    _demand_whole(ctx)
    found = _route(ctx, m.tensors, x, m.experts, m.experts_per_token)
    inputs = index(tape, x, found.tokens, (rows, x.shape[1]), "gather tokens")
    both = _experts(ctx, _named(m.tensors, "input_linear.weight"), inputs, m.experts)
    gate, up = tape.views(both, (rows, m.width), (rows, m.width))
    inner = mul(tape, activation(tape, gate, m.activation), up)
    del both
    made = _experts(ctx, _named(m.tensors, "output_linear.weight"), inner, m.experts)
    made = mul(tape, made, found.gates.view(rows, 1))
    total = _put_together(ctx, made, x.shape, found.tokens, _named(m.tensors, ".bias"))
    del inputs, gate, up, inner  # variables of the module, `chunked_hidden_states` among them
    return total


def _demand_whole(ctx: Context) -> None:
    if ctx.tp > 1 or ctx.setting.expert > 1:
        said = "experts of attention over several ranks have no memory model"
        raise UnsupportedError(said, "write tensor: 1 and expert: 1", "/parallelism")


def _route(ctx: Context, tensors: Tensors, x: Value, experts: int, k: int) -> Sorted:
    tape, tokens = ctx.tape, x.shape[0]
    tensor = _named(tensors, "router.layer.weight")
    logits = cast(tape, linear(tape, x, ctx.replicated(tensor), tensor.name), "fp32")
    best, _indices = topk(tape, logits, k)
    gates = cast(tape, softmax(tape, best, "fp32"), x.dtype)
    del best
    counted = [tape.new((tokens, experts), x.dtype, "gates of every expert") for _ in range(2)]
    order = tape.new((tokens * k,), "int64", "rows by expert")
    sorted_experts = tape.new((tokens * k,), "int64", "sorted experts")
    of_rows = tape.new((tokens * k,), "int64", "token of each row")
    chosen = index(tape, gates.view(tokens * k), order, (tokens * k,), "gather gates")
    del counted, sorted_experts
    return Sorted(order=order, tokens=of_rows, gates=chosen, logits=logits)


def _experts(ctx: Context, tensor: ParameterTensor, x: Value, experts: int) -> Value:
    """``inputs.split(expert_size)``, a product of each with a picked matrix, and all of them in one tensor.

    Of more experts than :data:`~memcheck.frameworks.transformers.looped_experts.MOST` several are one product.
    """
    tape, (_, outputs, inputs) = ctx.tape, tensor.shape
    stack = tape.parameter(ctx.parameter(tensor.name.removesuffix(".weight"), tensor.shape))
    turns = min(experts, MOST)
    rows, each = -(-x.shape[0] // turns), -(-experts // turns)
    parts = tape.views(x, *((rows, inputs),) * turns)
    made = tuple(picked_product(tape, part, stack, tensor.name, outputs, each) for part in parts)
    return cat(tape, made, (x.shape[0], outputs), "cat experts")


def _put_together(
    ctx: Context, part: Value, shape: tuple[int, ...], places: Storage, bias: ParameterTensor | None = None
) -> Value:
    """``zeros.index_add(0, places, part)``: the zeros, and a copy of them with the rows added, plus a bias.

    The zeros are a variable until the bias is added.
    """
    tape = ctx.tape
    zeros = tape.new(shape, part.dtype, "zeros")
    total = added(tape, tape.value(shape, part.dtype, "index_add"), part, places)
    if bias is not None:
        total = add(tape, total, tape.parameter(ctx.parameter(bias.name, bias.shape)), "add bias")
    del zeros
    return total


def _repeated(tape: Tape, x: Value, heads: int) -> Value:
    """``x.repeat(1, k, 1, 1)``, whose gradient is summed."""
    shape, dtype = x.shape, x.dtype
    return operator(tape, tape.value((shape[0], heads, *shape[2:]), dtype, "repeat"), x, "sum")


def _named(tensors: Tensors, ending: str) -> ParameterTensor:
    return next(t for t in tensors if t.name.endswith(ending))
