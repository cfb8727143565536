"""Modules that families share: matrices, softmax attention, latent attention, feed-forward networks, experts."""

from __future__ import annotations

from memcheck.models.module_types import NO_SHARED_EXPERTS, SharedExperts
from memcheck.models.parts.decoder import StackDimensions
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Attention, LatentAttention, Mlp, Moe, Norm, ParameterTensor
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def linear(
    name: str, out: int, inp: int, group: str, shard: str, *, bias: bool = False, transposed: bool = False
) -> tuple[ParameterTensor, ...]:
    """List the weight, and the bias if there is one, of an ``nn.Linear`` with ``inp`` inputs and ``out`` outputs.

    ``group``: group of the parameter table. ``shard``: how tensor parallelism cuts it: ``column``, ``row`` or ``none``.
    A column-parallel bias is cut with its matrix; a row-parallel one is replicated, because it is added after the
    all-reduce. ``transposed``: the weight is transformers' Conv1D, [in, out].
    """
    shape = (inp, out) if transposed else (out, inp)
    weight = ParameterTensor(name + ".weight", shape, group, shard=shard, linear=True, transposed=transposed)
    if not bias:
        return (weight,)
    return weight, ParameterTensor(name + ".bias", (out,), group, shard="column" if shard == "column" else "none")


def vector(name: str, size: int, group: str, shard: str = "none") -> ParameterTensor:
    """A parameter of one dimension."""
    return ParameterTensor(name, (size,), group, shard=shard)


def norm_tensors(norm: Norm | None, name: str = "") -> tuple[ParameterTensor, ...]:
    """List the weight and the bias of a norm; none for None or a norm without a weight.

    If ``rows`` heads have weights of their own, each tensor is [rows, size]. ``name``: path, if the norm has none.
    """
    if norm is None or not norm.weight:
        return ()
    path = norm.name or name
    shape = (norm.rows, norm.size) if norm.rows > 1 else (norm.size,)
    weight = ParameterTensor(path + ".weight", shape, "norm")
    return (weight, ParameterTensor(path + ".bias", shape, "norm")) if norm.bias else (weight,)


class Projections(Record):
    """How a module names and stores its matrices."""

    inputs: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    """Three matrices, or one that makes all of q, k and v."""
    output: str = "o_proj"
    module: str = "self_attn"
    transposed: bool = False
    """Matrices are stored as [inputs, outputs] (GPT-2's Conv1D)."""
    output_gate: bool = False
    """The queries' matrix is twice as wide, and its second half gates the output."""


LLAMA = Projections()


def grouped_attention(
    size: StackDimensions,
    projections: Projections = LLAMA,
    *,
    qkv_bias: bool = False,
    out_bias: bool = False,
    rotary_dim: int | None = None,
    query_norm: Norm | None = None,
    key_norm: Norm | None = None,
    **fields: Any,
) -> Attention:
    """Build softmax attention with ``size.heads`` query heads and ``size.kv_heads`` key-value heads.

    ``projections``: names and layout of its matrices. ``rotary_dim``: rotated elements of each head; None: all.
    ``qkv_bias``: of the input matrices; ``out_bias``: of the output's. ``query_norm``, ``key_norm``: norms on queries
    and keys. ``fields``: further ones of :class:`Attention`; ``tensors`` among them are appended to those built here.
    """
    layout, hidden = projections, size.hidden
    query_width, kv_width = size.heads * size.head_dim, size.kv_heads * size.head_dim
    first_width = 2 * query_width if layout.output_gate else query_width
    # rows of the input matrices: one for q, k and v together, or three
    widths = (first_width + 2 * kv_width,) if len(layout.inputs) == 1 else (first_width, kv_width, kv_width)
    tensors: tuple[ParameterTensor, ...] = ()
    for i, width in enumerate(widths):
        path = f"{layout.module}.{layout.inputs[i]}"
        tensors += linear(path, width, hidden, "attention", "column", bias=qkv_bias, transposed=layout.transposed)
    tensors += linear(
        f"{layout.module}.{layout.output}",
        hidden,
        query_width,
        "attention",
        "row",
        bias=out_bias,
        transposed=layout.transposed,
    )
    tensors += norm_tensors(query_norm) + norm_tensors(key_norm) + fields.pop("tensors", ())
    return Attention(
        heads=size.heads,
        kv_heads=size.kv_heads,
        head_dim=size.head_dim,
        qkv_bias=qkv_bias,
        out_bias=out_bias,
        fused_qkv=fields.pop("fused_qkv", "split") if len(layout.inputs) == 1 else "",
        query_norm=query_norm,
        key_norm=key_norm,
        rotary_dim=size.head_dim if rotary_dim is None else rotary_dim,
        output_gate=layout.output_gate,
        tensors=tensors,
        dropout=fields.pop("dropout", 0.0),
        window=fields.pop("window", None),
        **fields,
    )


def head_norm(kind: str, size: int, which: str, *, rows: int = 1, bias: bool = False, weight: bool = True) -> Norm:
    """Build a norm on queries (``which`` = ``q``) or keys (``k``), named as Llama-like modules do.

    ``kind``: such as ``rmsnorm``. ``size``: normalised elements. ``rows``: number of heads that have weights of their
    own.
    """
    return Norm(kind, size, weight=weight, bias=bias, rows=rows, name=f"self_attn.{which}_norm")


def latent_attention(
    config: ConfigReader,
    size: StackDimensions,
    *,
    interleaved: bool = True,
    v_head_dim: int | None = None,
    whole_queries: bool = False,
) -> LatentAttention:
    """Build DeepSeek's multi-head latent attention (MLA) from its usual keys.

    Tensor parallelism replicates the low-rank projections and their norms (shard ``none``). ``interleaved``: the rotary
    part is stored as pairs of neighbours. ``v_head_dim``: the class's default, if it has one. ``whole_queries``: by
    default the class has one query matrix, without a low rank (``q_lora_rank`` may be absent).
    """
    q_rank = config.optional_integer("q_lora_rank")
    if q_rank is None and "q_lora_rank" not in config.config and not whole_queries:
        config.integer("q_lora_rank")  # null is a statement (no low-rank query), absence is not
    kv_rank = config.integer("kv_lora_rank")
    nope, rope = config.integer("qk_nope_head_dim"), config.integer("qk_rope_head_dim")
    v_dim = (
        config.integer("v_head_dim")
        if v_head_dim is None
        else config.integer("v_head_dim", default=v_head_dim, null=v_head_dim)
    )
    bias = config.flag("attention_bias")
    q_width, prefix = size.heads * (nope + rope), "self_attn."
    if q_rank is None:
        query = linear(prefix + "q_proj", q_width, size.hidden, "attention", "column")
    else:
        query = (
            *linear(prefix + "q_a_proj", q_rank, size.hidden, "attention", "none", bias=bias),
            ParameterTensor(prefix + "q_a_layernorm.weight", (q_rank,), "norm"),
            *linear(prefix + "q_b_proj", q_width, q_rank, "attention", "column"),
        )
    tensors = (
        *query,
        *linear(prefix + "kv_a_proj_with_mqa", kv_rank + rope, size.hidden, "attention", "none", bias=bias),
        ParameterTensor(prefix + "kv_a_layernorm.weight", (kv_rank,), "norm"),
        *linear(prefix + "kv_b_proj", size.heads * (nope + v_dim), kv_rank, "attention", "column"),
        *linear(prefix + "o_proj", size.hidden, size.heads * v_dim, "attention", "row", bias=bias),
    )
    dropout = config.dropout("attention_dropout")
    return LatentAttention(
        heads=size.heads,
        q_lora_rank=q_rank,
        kv_lora_rank=kv_rank,
        qk_nope_head_dim=nope,
        qk_rope_head_dim=rope,
        v_head_dim=v_dim,
        bias=bias,
        tensors=tensors,
        rotary_interleaved=interleaved,
        dropout=dropout,
    )


def gated_mlp(
    hidden: int, width: int, activation: str, *, bias: bool = False, fused: bool = False, module: str = "mlp"
) -> Mlp:
    """Build a gated MLP of inner ``width``: down(act(gate(x)) * up(x)). ``fused``: gate and up are one matrix."""
    return Mlp(
        width=width,
        gated=True,
        activation=activation,
        bias=bias,
        fused_gate_up=fused,
        tensors=gated_tensors(module, hidden, width, "mlp", bias=bias, fused=fused),
    )


def gated_tensors(
    module: str, hidden: int, width: int, group: str, *, bias: bool = False, fused: bool = False
) -> tuple[ParameterTensor, ...]:
    """List the weights and biases of a gated MLP of inner ``width``: gate, up and down.

    ``module``: its path in the layer. ``group``: group of the parameter table that they count in. ``fused``: gate and
    up are one matrix.
    """
    if fused:
        first = linear(f"{module}.gate_up_proj", 2 * width, hidden, group, "column", bias=bias)
    else:
        first = (
            *linear(f"{module}.gate_proj", width, hidden, group, "column", bias=bias),
            *linear(f"{module}.up_proj", width, hidden, group, "column", bias=bias),
        )
    return (*first, *linear(f"{module}.down_proj", hidden, width, group, "row", bias=bias))


def plain_mlp(
    hidden: int,
    width: int,
    activation: str,
    up: str,
    down: str,
    *,
    bias: bool = False,
    transposed: bool = False,
    dropout: float = 0.0,
) -> Mlp:
    """Build an MLP of two matrices and inner ``width``: down(act(up(x))).

    ``up``, ``down``: module paths of the matrices. ``transposed``: they are transformers' Conv1D.
    """
    tensors = (
        *linear(up, width, hidden, "mlp", "column", bias=bias, transposed=transposed),
        *linear(down, hidden, width, "mlp", "row", bias=bias, transposed=transposed),
    )
    return Mlp(width=width, gated=False, activation=activation, bias=bias, dropout=dropout, tensors=tensors)


def with_linear_router(moe: Moe) -> Moe:
    """Return the experts with a router that is an ``nn.Linear``, which adapters and quantisers wrap."""
    return moe._replace(tensors=tuple(t._replace(linear=True) if t.group == "router" else t for t in moe.tensors))


def with_correction(moe: Moe, name: str, shape: tuple[int, ...]) -> Moe:
    """Return the experts with a correction bias per expert, a parameter ``name`` that gets no gradient.

    It is added to the scores by which experts are chosen (DeepSeek V3's ``e_score_correction_bias``).
    """
    bias = ParameterTensor(name, shape, "router", fixed=True)
    return moe._replace(tensors=(*moe.tensors, bias))


def stacked_experts(
    module: str, experts: int, hidden: int, width: int, *, gated: bool = True, transposed: bool = False
) -> tuple[ParameterTensor, ...]:
    """List the two tensors in which a layer's experts are stacked: gate and up matrices, and down matrices.

    Shapes: [experts, rows, columns]; ``transposed``: columns before rows. ``width``: inner width of an expert.
    ``gated``: the first tensor has gate and up; otherwise only up.
    """
    first, up = ("gate_up_proj", 2 * width) if gated else ("up_proj", width)
    shape_up = (experts, hidden, up) if transposed else (experts, up, hidden)
    shape_down = (experts, width, hidden) if transposed else (experts, hidden, width)
    return (
        ParameterTensor(f"{module}.{first}", shape_up, "experts", shard="column", transposed=transposed),
        ParameterTensor(f"{module}.down_proj", shape_down, "experts", shard="row", transposed=transposed),
    )


def routed(
    hidden: int,
    choice: tuple[int, int],
    width: int,
    activation: str,
    shared: SharedExperts = NO_SHARED_EXPERTS,
    *,
    module: str = "mlp",
    names: tuple[str, str] = ("gate", "shared_experts"),
    experts_first: bool = False,
    **fields: Any,
) -> Moe:
    """Build a layer's gated experts with stacked tensors, as most families of transformers 5 store them.

    Their router is a bare parameter, no linear layer. ``choice``: number of experts, and how many of them a token uses.
    ``width``: inner width of an expert. ``shared``: experts that every token uses. ``names``: of the router and of the
    shared experts, inside ``module``. ``experts_first``: the class creates its experts before its router, which is the
    order in which an optimizer that loops updates them. ``fields``: further ones of :class:`Moe`.
    """
    experts, experts_per_token = choice
    router, shared_module = names
    tensors = (
        ParameterTensor(f"{module}.{router}.weight", (experts, hidden), "router"),
        *stacked_experts(f"{module}.experts", experts, hidden, width),
    )
    if experts_first:
        tensors = (*tensors[1:], tensors[0])
    if shared.width:
        tensors += gated_tensors(f"{module}.{shared_module}", hidden, shared.width, "shared_experts")
    if shared.gate:
        tensors += linear(f"{module}.shared_expert_gate", 1, hidden, "router", "none")
    return Moe(
        experts,
        experts_per_token,
        width,
        gated=True,
        activation=activation,
        tensors=tensors,
        shared=shared,
        bias=fields.pop("bias", False),
        router=fields.pop("router", "softmax"),
        **fields,
    )
