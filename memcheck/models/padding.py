"""Models whose rows come with a mask: they differ in length, or hold several documents."""

from __future__ import annotations

from functools import lru_cache

from memcheck.models.types import Architecture, Attention, Block, CrossAttention, LatentAttention


@lru_cache(maxsize=64)
def padded(architecture: Architecture) -> Architecture:
    """Return the model with a padding mask for every sequence in its attention.

    In an encoder-decoder the encoder and the cross-attention have it. The decoder's own padding comes after all scored
    tokens, and needs none. An encoder of sounds has none.
    """
    encoder = architecture.encoder
    if encoder is None:
        return architecture._replace(blocks=_masked(architecture.blocks))
    if encoder.channels:
        return architecture
    blocks = tuple((b._replace(cross=b.cross and _padded_cross(b.cross)), count) for b, count in architecture.blocks)
    return architecture._replace(blocks=blocks, encoder=encoder._replace(blocks=_masked(encoder.blocks)))


def _padded_cross(cross: CrossAttention) -> CrossAttention:
    return cross._replace(attention=cross.attention._replace(row_masks="padding"))


def _masked(blocks: tuple[tuple[Block, int], ...]) -> tuple[tuple[Block, int], ...]:
    return tuple((_with_mask(block), count) for block, count in blocks)


def _with_mask(block: Block) -> Block:
    """Return the layer where each attention applies a padding mask."""
    if isinstance(block.second_mixer, LatentAttention):
        block = block._replace(second_mixer=block.second_mixer._replace(row_masks="padding"))
    mixer = block.mixer
    if isinstance(mixer, (Attention, LatentAttention)):
        return block._replace(mixer=mixer._replace(row_masks="padding"))
    return block


def maskable(architecture: Architecture) -> bool:
    """Say whether every layer that mixes tokens is attention whose masks are known.

    Towers are allowed if the image tokens that they compute take rows of the text; other towers are not.
    """
    if architecture.encoder is not None:
        return architecture.encoder.rotary_dim == 0
    if architecture.vision is not None and architecture.vision.crosses:
        return False
    if architecture.vision is None and any(tower.part != "language" for tower in architecture.others):
        return False
    return all(block.mixer is None or _known(block.mixer) for block, _ in architecture.blocks)


def _known(mixer: object) -> bool:
    """Say whether the mask is known: softmax attention is, and latent attention without an indexer that chooses
    keys.
    """
    if isinstance(mixer, LatentAttention):
        return mixer.extension is None
    return isinstance(mixer, Attention)


def unpaddable(architecture: Architecture) -> bool:
    """Say whether it is known what FlashAttention copies to remove padding (``_upad_input``).

    It is if every layer runs it on its own queries and keys.
    """
    if architecture.encoder is not None or architecture.vision is not None:
        return False
    mixers = [block.mixer for block, _ in architecture.blocks if block.mixer is not None]
    return all(isinstance(m, Attention) and m.kernels.flash and not m.sinks and not m.alibi for m in mixers)
