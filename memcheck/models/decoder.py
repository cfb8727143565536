"""The usual decoder and the modules that families share: matrices, attention, feed-forward networks, experts, head."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby

from memcheck.models.module_types import NO_SHARED_EXPERTS, SharedExperts
from memcheck.models.reader import MAX_LAYERS, REQUIRED, ConfigReader, Required
from memcheck.models.types import (
    TEXT_ALONE,
    Architecture,
    Attention,
    Block,
    LatentAttention,
    Mixer,
    Mlp,
    Moe,
    Norm,
    ParameterTensor,
)
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar


if TYPE_CHECKING:
    Kind = TypeVar("Kind")


class StackDimensions(Record):
    """Dimensions of a stack of layers: widths in elements, vocabulary and positions in tokens."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    positions: int


class Names(Record):
    """A family's own names of these dimensions, where they are not Llama's."""

    hidden: tuple[str, ...] = ("hidden_size",)
    layers: tuple[str, ...] = ("num_hidden_layers",)
    heads: tuple[str, ...] = ("num_attention_heads",)
    positions: tuple[str, ...] = ("max_position_embeddings",)


LLAMA_NAMES = Names()
"""Keys of Llama's configuration, which most families share."""
GPT2_NAMES = Names(
    hidden=("n_embd", "hidden_size"),
    layers=("n_layer", "num_hidden_layers"),
    heads=("n_head", "num_attention_heads"),
    positions=("n_positions", "max_position_embeddings"),
)


def read_sizes(
    config: ConfigReader,
    names: Names = LLAMA_NAMES,
    *,
    kv_heads: str = "optional",
    head_dim: int | None = None,
    head_dim_key: bool = True,
    learned_positions: bool = False,
    layers: int | None = None,
) -> StackDimensions:
    """Read hidden size, layers, heads, vocabulary and positions from a decoder's configuration.

    ``names``: the family's keys. ``kv_heads``: ``optional`` (absent means ungrouped, as in the class), ``required``
    (the class default is a number, so the configuration has to say it), ``none`` (the family has no grouped heads).
    ``head_dim``: the class default, if it is a number; otherwise hidden size / heads. ``head_dim_key``: the family
    reads the key ``head_dim``. ``learned_positions``: the number of positions is a table's size, so it is required.
    ``layers``: their number, if another key states it.
    """
    hidden = config.integer(*names.hidden)
    if layers is None:
        layers = config.integer(*names.layers, maximum=MAX_LAYERS)
    heads = config.integer(*names.heads)
    key_value_heads = heads
    if kv_heads != "none":
        default: int | Required = heads if kv_heads == "optional" else REQUIRED
        key_value_heads = config.integer("num_key_value_heads", default=default, null=heads)
        check_groups(config, heads, key_value_heads)
    size = config.optional_integer("head_dim") if head_dim_key else None
    if size is None:
        size = head_dim or split_heads(config, hidden, heads, names)
    default_positions: int | Required = REQUIRED if learned_positions else 0
    positions = config.integer(*names.positions, default=default_positions, null=default_positions)
    return StackDimensions(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=key_value_heads,
        head_dim=size,
        vocab=config.integer("vocab_size"),
        positions=positions,
    )


def check_groups(config: ConfigReader, heads: int, kv_heads: int, key: str = "num_key_value_heads") -> None:
    """Refuse a number of key-value heads (``key``) that does not divide the query heads."""
    if heads % kv_heads:
        config.fail(
            key, f"{heads} attention heads cannot share {kv_heads} key-value heads", "use a divisor of the heads"
        )


def split_heads(config: ConfigReader, hidden: int, heads: int, names: Names = LLAMA_NAMES) -> int:
    """Return the elements of a head, hidden size / heads; refuse a division with a remainder."""
    if hidden % heads:
        key = next((k for k in names.heads if config.has(k)), names.heads[0])
        config.fail(key, f"hidden size {hidden} is no multiple of {heads} attention heads", "state head_dim")
    return hidden // heads


def rotary_share(config: ConfigReader, kind: str, default: float) -> float:
    """Return ``partial_rotary_factor`` of one kind of layers from ``rope_parameters``: a share from 0 to 1.

    ``kind``: a name of ``layer_types``, such as ``full_attention``.
    """
    parameters = config.raw("rope_parameters")
    kind_parameters = parameters.get(kind) if isinstance(parameters, dict) else None
    share = kind_parameters.get("partial_rotary_factor", default) if isinstance(kind_parameters, dict) else default
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0.0 <= share <= 1.0:
        config.fail("rope_parameters", f"partial_rotary_factor of {kind} layers is not a share of 1")
    return float(share)


LAYER_TYPES = ("full_attention", "sliding_attention", "chunked_attention", "linear_attention")
"""Words that ``layer_types`` may have."""


def stack(kinds: Iterable[Kind], build_layer: Callable[[Kind], Block]) -> tuple[tuple[Block, int], ...]:
    """Return the layers as runs of (layer, how many): consecutive layers of equal kind are one run.

    ``kinds``: a hashable description of each layer. ``build_layer``: called once for each different kind.
    """
    blocks: dict[Kind, Block] = {}
    runs = []
    for kind, members in groupby(kinds):
        if kind not in blocks:
            blocks[kind] = build_layer(kind)
        runs.append((blocks[kind], sum(1 for _ in members)))
    return tuple(runs)


def layer_types(
    config: ConfigReader, layers: int, default: Callable[[int], str], known: tuple[str, ...] = LAYER_TYPES
) -> tuple[str, ...]:
    """Return the kind of mixer of every layer: the key ``layer_types``, or ``default(layer index)`` where it is absent.

    Fails for a kind that is not in ``known``, and for a list of another length than ``layers``.
    """
    stated = config.texts("layer_types")
    if stated is None:
        return tuple(default(i) for i in range(layers))
    if len(stated) != layers:
        config.fail("layer_types", f"layer_types names {len(stated)} layers, the model has {layers}")
    unknown = next((t for t in stated if t not in known), None)
    if unknown is not None:
        config.fail("layer_types", f"unknown layer type {unknown!r}", f"known: {', '.join(known)}")
    return stated


def sparse_types(config: ConfigReader, layers: int, dense: int) -> tuple[bool, ...]:
    """Say for each layer whether it has routed experts.

    They are those that ``mlp_layer_types`` calls sparse; if it is absent, all but the first ``dense`` layers.
    """
    stated = config.texts("mlp_layer_types")
    if stated is None:
        return tuple(i >= dense for i in range(layers))
    if len(stated) != layers:
        config.fail("mlp_layer_types", f"mlp_layer_types names {len(stated)} layers, the model has {layers}")
    unknown = next((t for t in stated if t not in ("dense", "sparse")), None)
    if unknown is not None:
        config.fail("mlp_layer_types", f"unknown kind {unknown!r} in mlp_layer_types", "known: dense, sparse")
    return tuple(t == "sparse" for t in stated)


def rotary_layers(config: ConfigReader, layers: int, period: int) -> tuple[bool, ...]:
    """Say for each layer whether it rotates queries and keys.

    ``no_rope_layers`` has a 1 for each layer that does. If it is absent, all but every ``period``-th layer do.
    """
    period = config.integer("no_rope_layer_interval", default=period, null=period)
    stated = config.integers("no_rope_layers")
    if not stated:
        return tuple((i + 1) % period != 0 for i in range(layers))
    if len(stated) != layers:
        config.fail("no_rope_layers", f"no_rope_layers names {len(stated)} layers, the model has {layers}")
    return tuple(bool(v) for v in stated)


def windows(types: Iterable[str], window: int | None) -> list[int | None]:
    """Return the sliding window of each layer in tokens; None for full attention."""
    return [window if t in ("sliding_attention", "chunked_attention") else None for t in types]


def rms_norm(size: int, name: str, kind: str = "rmsnorm") -> Norm:
    """Build an RMSNorm over ``size`` elements, with a weight. ``name``: its module path."""
    return Norm(kind, size, name=name)


def layer_norm(size: int, name: str, *, bias: bool = True, kind: str = "layernorm") -> Norm:
    """Build a LayerNorm over ``size`` elements, with a weight. ``name``: its module path."""
    return Norm(kind, size, bias=bias, name=name)


def pre_norm_block(
    hidden: int,
    mixer: Attention | LatentAttention | Mixer,
    mlp: Mlp | Moe,
    *,
    kind: str = "rmsnorm",
    bias: bool = False,
    dropout: float = 0.0,
) -> Block:
    """Build Llama's layer: norm, attention or another mixer, residual sum, norm, feed-forward, residual sum.

    ``hidden``: width of the residual stream. ``kind``, ``bias``: of both norms.
    """
    return Block(
        mixer=mixer,
        mlp=mlp,
        input_norm=Norm(kind, hidden, bias=bias, name="input_layernorm"),
        mlp_norm=Norm(kind, hidden, bias=bias, name="post_attention_layernorm"),
        dropout=dropout,
    )


def with_attention(blocks: tuple[tuple[Block, int], ...], **fields: Any) -> tuple[tuple[Block, int], ...]:
    """Return runs of (layer, how many) with other ``fields`` of their attention; other mixers stay as they are."""
    changed = []
    for block, count in blocks:
        if isinstance(block.mixer, Attention):
            block = block._replace(mixer=block.mixer._replace(**fields))
        changed.append((block, count))
    return tuple(changed)


def decoder(
    config: ConfigReader,
    size: StackDimensions,
    blocks: tuple[tuple[Block, int], ...],
    *,
    tied: bool,
    final_norm: Norm | None = None,
    rotary_dim: int | None = None,
    **fields: Any,
) -> Architecture:
    """Build the architecture of a decoder: embedding, ``blocks`` as (layer, how many), final norm and head.

    ``tied``: the class's default of ``tie_word_embeddings``. ``final_norm``: None for an RMSNorm. ``rotary_dim``:
    rotated elements of each head, None for all. ``fields``: further ones of :class:`Architecture`.
    """
    architecture = Architecture(
        model_type=config.model_type,
        hidden_size=size.hidden,
        vocab_size=size.vocab,
        blocks=blocks,
        embedding_size=size.hidden,
        tie_word_embeddings=config.flag("tie_word_embeddings", default=tied),
        final_norm=final_norm or rms_norm(size.hidden, "model.norm"),
        max_position_embeddings=size.positions,
        rotary_dim=size.head_dim if rotary_dim is None else rotary_dim,
        task=None,
        modalities=TEXT_ALONE,
    )
    return architecture._replace(**fields) if fields else architecture


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
"""Llama's four matrices of attention."""


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
    layout = projections
    tensors = _projection_tensors(size, layout, qkv_bias=qkv_bias, out_bias=out_bias)
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


def _projection_tensors(
    size: StackDimensions, layout: Projections, *, qkv_bias: bool, out_bias: bool
) -> tuple[ParameterTensor, ...]:
    """List the matrices of softmax attention with their biases: three of q, k and v or one for all, and the output."""
    query_width, kv_width = size.heads * size.head_dim, size.kv_heads * size.head_dim
    first_width = 2 * query_width if layout.output_gate else query_width
    # rows of the input matrices: one for q, k and v together, or three
    widths = (first_width + 2 * kv_width,) if len(layout.inputs) == 1 else (first_width, kv_width, kv_width)
    module, transposed = layout.module, layout.transposed
    tensors: tuple[ParameterTensor, ...] = ()
    for name, width in zip(layout.inputs, widths, strict=True):
        path = f"{module}.{name}"
        tensors += linear(path, width, size.hidden, "attention", "column", bias=qkv_bias, transposed=transposed)
    path = f"{module}.{layout.output}"
    return tensors + linear(path, size.hidden, query_width, "attention", "row", bias=out_bias, transposed=transposed)


def read_attention(
    config: ConfigReader, size: StackDimensions, projections: Projections = LLAMA, *, bias: bool = False, **fields: Any
) -> Attention:
    """Build softmax attention from its usual keys: ``attention_bias`` of all its matrices, and ``attention_dropout``.

    ``bias``: the class's default of the first. ``fields``: further arguments of :func:`grouped_attention`.
    """
    has_bias = config.flag("attention_bias", default=bias)
    dropout = config.dropout("attention_dropout")
    return grouped_attention(size, projections, qkv_bias=has_bias, out_bias=has_bias, dropout=dropout, **fields)


def head_norms(kind: str, size: int, *, weight: bool = True) -> dict[str, Any]:
    """Return the arguments of :func:`grouped_attention` for a norm on each head's query and key, of ``size`` elements.

    ``kind``: such as ``rmsnorm``.
    """
    query_norm, key_norm = (head_norm(kind, size, which, weight=weight) for which in "qk")
    return {"query_norm": query_norm, "key_norm": key_norm}


def head_norm(kind: str, size: int, which: str, *, rows: int = 1, bias: bool = False, weight: bool = True) -> Norm:
    """Build a norm on queries (``which`` = ``q``) or keys (``k``), named as Llama-like modules do.

    ``kind``: such as ``rmsnorm``. ``size``: normalised elements. ``rows``: number of heads that have weights of their
    own.
    """
    return Norm(kind, size, weight=weight, bias=bias, rows=rows, name=f"self_attn.{which}_norm")


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
    shared experts, inside ``module``. ``experts_first``: the class creates its experts before its router (DeepSeek V3),
    which is the order in which an optimizer that loops updates them. ``fields``: further ones of :class:`Moe`.
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
