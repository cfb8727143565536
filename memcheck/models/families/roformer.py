"""RoFormer (modeling_roformer.py): BERT's layers in eager code, whose queries and keys are turned in pairs."""

from __future__ import annotations

from memcheck.models.families.bert import ROBERTA, encoder, in_eager_code
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Attention, Block, ParameterTensor

TRANSFORM = "cls.predictions.transform"


def read(config: ConfigReader) -> Architecture:
    """``model_type: roformer``: sines and cosines stand in a table that wants no gradient."""
    if config.flag("rotary_value"):
        config.fail("rotary_value", "values that are turned, too, have no memory model", "remove rotary_value")
    narrow = config.optional_integer("embedding_size")
    activation = config.activation(default="gelu")
    names = ROBERTA._replace(
        model="roformer",
        head="cls.predictions",
        dense=f"{TRANSFORM}.dense",
        norm=f"{TRANSFORM}.LayerNorm",
        pools=activation,
        body_pools=False,
    )
    found = encoder(config, names, narrow=narrow)
    width = found.hidden_size // _heads(found)
    angles = ParameterTensor(
        "roformer.encoder.embed_positions.weight", (found.learned_positions, width), "position", fixed=True
    )
    return found._replace(
        blocks=tuple((_turned(in_eager_code(block)), count) for block, count in found.blocks),
        learned_positions=0,
        rotary_dim=width,
        extra_tensors=(*found.extra_tensors, angles),
    )


def _heads(a: Architecture) -> int:
    mixer = a.blocks[0][0].mixer
    return mixer.heads if isinstance(mixer, Attention) else 1


def _turned(block: Block) -> Block:
    if not isinstance(block.mixer, Attention):
        return block
    return block._replace(mixer=block.mixer._replace(rotary_dim=block.mixer.head_dim, rotary_form="pairs-stacked"))
