"""Which models a framework builds, and which parts of them memcheck has its forward pass for."""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from memcheck.models.types import Block


class Families(Record):
    """What a framework builds that has a memory model here. Anything else is refused, never estimated as something
    near.

    A family is a ``model_type`` of Hugging Face. ``parts`` are fields of the records of
    :mod:`memcheck.models.types`, as ``Attention.window``: those that the framework's forward pass reads.
    """

    names: tuple[str, ...]
    parts: frozenset[str] | None = None
    """Parts of layers that the framework builds; None: transformers' own code runs, and builds every part."""
    harmless: frozenset[str] = frozenset()
    """Parts that the framework does not have, or that take the same memory there; a comment at each entry says why."""
    own: frozenset[str] = frozenset()
    """Values of ``model_type`` that no other framework builds."""
    source: str = ""
    """Where upstream lists the framework's models."""


def words(text: str) -> tuple[str, ...]:
    """Names between blanks."""
    return tuple(text.split())


def parts(**fields: str) -> frozenset[str]:
    """``Attention="heads window"`` as ``{"Attention.heads", "Attention.window"}``."""
    return frozenset(f"{record}.{field}" for record, words in fields.items() for field in words.split())


LATENT = "heads q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim bias tensors"
EXPERTS = "experts experts_per_token width gated activation router shared tensors"
NORM = "kind size weight bias"

FORMS = parts(
    Attention="fused_qkv rotation kernels eager extension",
    Rotation="form interleaved named",
    FusedKernels="sdpa flash explicit_mask",
    EagerScores="scores_fp32 softmax_fp32 returned",
    LatentAttention="rotary_interleaved",
    Mlp="fused_gate_up inline adaptable",
    Moe="routing adaptable",
    Routing="input_fp32 scores_fp32 normalised groups",
    Block="dropout_place variables",
    LayerVariables="norm output mlp_input",
    PositionTable="positions",
    Norm="name",
) | {
    "BertMlp", "BloomAttention", "ComplexLatentAttention", "ExpandedFalconAttention", "FalconAttention",
    "Gpt2Attention", "MptAttention", "NormsFirstBlock",
}  # fmt: skip
"""How transformers writes a layer, which other code writes its own way. What a router with groups or a correction adds
to its scores is of [tokens, experts] and gone before the experts run. Fields of the record in ``Attention.extension``
are parts, too. A variant's name stands for what sets it apart."""

OUTSIDE = words(
    "embedding_norm learned_positions head_bias final_softcap embedding_scale embedding_dropout extra_tensors "
    "logit_scale"
)
"""Fields of ``Architecture`` that add something to the embedding or the head."""

PARTIAL_ROTARY = "Attention.rotary_dim of a part of each head"


def stated(block: Block) -> Iterator[str]:
    """Return the parts of a block that differ from their default, or from zero without one, as ``Record.field``."""
    yield from _stated(block)
    rotary = getattr(block.mixer, "rotary_dim", 0)
    if rotary and rotary != getattr(block.mixer, "head_dim", rotary):
        yield PARTIAL_ROTARY


def _stated(record: Any) -> Iterator[str]:
    """Yield ``Record.field`` for each field of a record, and of records inside it, that differs from its default.

    A field is named by the class that declares it, such as ``Attention.window`` for a subclass of ``Attention``; the
    subclass's name is yielded before. Fields without a default count if they are neither zero nor False.
    """
    record_type, defaults = type(record), record._field_defaults
    declaring_class = next(base.__name__ for base in record_type.__mro__ if "_fields" in vars(base))
    if record_type.__name__ != declaring_class:
        yield record_type.__name__
    for field, value in zip(record._fields, record, strict=True):
        differs = value != defaults[field] if field in defaults else bool(value)
        if differs:
            yield f"{declaring_class}.{field}"
        if isinstance(value, tuple) and hasattr(value, "_field_defaults"):
            yield from _stated(value)
