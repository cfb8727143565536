"""The usual decoder: its dimensions, the runs of its layers, embedding, pre-norm blocks, final norm, head."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby

from memcheck.models.reader import MAX_LAYERS, REQUIRED, ConfigReader, Required
from memcheck.models.types import TEXT_ALONE, Architecture, Attention, Block, LatentAttention, Mixer, Mlp, Moe, Norm
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

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
    positions = config.integer(
        *names.positions, default=REQUIRED if learned_positions else 0, null=REQUIRED if learned_positions else 0
    )
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
