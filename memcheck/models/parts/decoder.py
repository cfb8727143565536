"""The usual decoder: embedding, pre-norm blocks, final norm, head."""

from __future__ import annotations

from memcheck.models.parts.sizes import StackDimensions
from memcheck.models.reader import ConfigReader
from memcheck.models.types import TEXT_ALONE, Architecture, Attention, Block, LatentAttention, Mixer, Mlp, Moe, Norm

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def rms_norm(size: int, name: str, kind: str = "rmsnorm") -> Norm:
    """An RMSNorm with a weight."""
    return Norm(kind, size, name=name)


def layer_norm(size: int, name: str, *, bias: bool = True, kind: str = "layernorm") -> Norm:
    """A LayerNorm with a weight."""
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
    """Llama's block: norm, mixer, sum, norm, feed-forward, sum."""
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
    """Assemble the model. ``tied``: the class default of ``tie_word_embeddings``; ``fields``: further ones."""
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
