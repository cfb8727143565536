"""The usual decoder: embedding, pre-norm blocks, final norm, head."""

from __future__ import annotations

from memcheck.models.parts.sizes import StackDimensions
from memcheck.models.reader import ConfigReader
from memcheck.models.types import TEXT_ALONE, Architecture, Attention, Block, LatentAttention, Mixer, Mlp, Moe, Norm

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


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
