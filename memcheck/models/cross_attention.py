"""Models whose language model reads pictures by layers of cross attention: with them, and without.

Only what a step runs is among ``Architecture.blocks``; what is idle is in ``Architecture.others``.
"""

from __future__ import annotations

from itertools import groupby

from memcheck.models.types import Architecture, Attention, Block
from memcheck.models.vision import OtherTower

PART = "language"


def reads_pictures(block: Block) -> bool:
    """Whether the layer's attention reads what a tower made, and no text."""
    return isinstance(block.mixer, Attention) and block.mixer.cross


def without_pictures(architecture: Architecture) -> Architecture:
    """The model of a step without pictures: its crossing layers hold their weights and do not run."""
    found = tuple((block, n) for block, n in architecture.blocks if reads_pictures(block))
    if not found:
        return architecture
    own = tuple((block, n) for block, n in architecture.blocks if not reads_pictures(block))
    return architecture._replace(
        blocks=own, others=(*architecture.others, OtherTower(part=PART, blocks=found, tensors=()))
    )


def with_pictures(architecture: Architecture, layers: tuple[int, ...]) -> Architecture:
    """The model of a step with pictures. ``layers``: numbers of those that read them."""
    others = [
        block for other in architecture.others if other.part == PART for block, n in other.blocks for _ in range(n)
    ]
    own = iter(architecture.layers())
    last = architecture.num_layers + len(others)
    read = iter(others)
    woven = [next(read) if i in layers else next(own) for i in range(last)]
    blocks = tuple((block, len(list(alike))) for block, alike in groupby(woven))
    return architecture._replace(
        blocks=blocks, others=tuple(other for other in architecture.others if other.part != PART)
    )
