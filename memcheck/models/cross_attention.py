"""Models whose language model reads pictures by layers of cross attention: with them, and without.

Only what a step runs is among ``Architecture.blocks``; what is idle is in ``Architecture.others``.
"""

from __future__ import annotations

from itertools import groupby

from memcheck.models.types import Architecture, Attention, Block
from memcheck.models.vision import OtherTower

PART = "language"


def reads_pictures(block: Block) -> bool:
    """Say whether the layer's attention reads what a tower made, and no text."""
    return isinstance(block.mixer, Attention) and block.mixer.cross


def without_pictures(architecture: Architecture) -> Architecture:
    """Return the model of a step without pictures: its cross-attention layers hold their weights and do not run."""
    cross_layers = tuple((block, times) for block, times in architecture.blocks if reads_pictures(block))
    if not cross_layers:
        return architecture
    text_layers = tuple((block, times) for block, times in architecture.blocks if not reads_pictures(block))
    idle_tower = OtherTower(part=PART, blocks=cross_layers, tensors=())
    modalities = architecture.modalities._replace(others=(*architecture.others, idle_tower))
    return architecture._replace(blocks=text_layers, modalities=modalities)


def with_pictures(architecture: Architecture, layers: tuple[int, ...]) -> Architecture:
    """Return the model of a step with pictures, where cross-attention layers run among the text layers.

    ``layers``: numbers of the layers that read pictures.
    """
    cross_layers = [
        block for tower in architecture.others if tower.part == PART for block, n in tower.blocks for _ in range(n)
    ]
    text_layers = iter(architecture.layers())
    num_layers = architecture.num_layers + len(cross_layers)
    cross_layer = iter(cross_layers)
    woven = [next(cross_layer) if i in layers else next(text_layers) for i in range(num_layers)]
    blocks = tuple((block, len(list(equal_layers))) for block, equal_layers in groupby(woven))
    others = tuple(tower for tower in architecture.others if tower.part != PART)
    return architecture._replace(blocks=blocks, modalities=architecture.modalities._replace(others=others))
