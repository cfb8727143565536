"""The dimensions that every decoder has."""

from __future__ import annotations

from memcheck.models.reader import MAX_LAYERS, REQUIRED, ConfigReader, Required
from memcheck.record import Record


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
