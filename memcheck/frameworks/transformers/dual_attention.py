"""A layer of two attentions and two dense networks, with experts that read what the first network reads.

modeling_longcat_flash.py of transformers 5.23, LongcatFlashDecoderLayer.forward.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.modules import normalise
from memcheck.autograd.operator import add
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.layers import mixer_forward
from memcheck.frameworks.transformers.mlp import mlp
from memcheck.frameworks.transformers.moe import routed_experts
from memcheck.models.types import Block, Mlp, Moe


def dual_attention_block(ctx: Context, block: Block, x: Value) -> Value:
    """Run LongCat Flash's layer: two attentions, two dense networks, and experts that read the first network's input.

    ``x``: [tokens, hidden]; so is what is returned. The experts' output is added at the end of the layer
    (``shortcut_mlp_output``).
    """
    tape, stream, mlp_config = ctx.tape, x.dtype, block.mlp
    if block.mixer is None or block.second_mixer is None or not isinstance(mlp_config, Moe):
        return x
    first_mlp, second_mlp = _networks(mlp_config)
    hidden_states = mixer_forward(ctx, block.mixer, normalise(ctx, block.input_norm, x), stream)
    x = add(tape, x, hidden_states, "residual")
    hidden_states = normalise(ctx, block.mlp_norm, x)
    shortcut = routed_experts(ctx, mlp_config, hidden_states)
    hidden_states = mlp(ctx, first_mlp, hidden_states)
    x = add(tape, x, hidden_states, "residual")
    hidden_states = mixer_forward(ctx, block.second_mixer, normalise(ctx, block.mixer_output_norm, x), stream)
    x = add(tape, x, hidden_states, "residual")
    hidden_states = mlp(ctx, second_mlp, normalise(ctx, block.mlp_output_norm, x))
    both = add(tape, x, hidden_states, "residual")
    return add(tape, both, shortcut, "shortcut")


def _networks(moe: Moe) -> list[Mlp]:
    """Return the two dense feed-forward networks of the layer, which the record holds as shared experts of one
    mixture.
    """
    tensors = [t for t in moe.tensors if t.group == "shared_experts"]
    half = len(tensors) // 2
    return [
        Mlp(
            moe.shared.width // 2,
            moe.gated,
            moe.activation,
            tensors=tuple(network_tensors),
            adaptable=moe.adaptable,
            bias=False,
        )
        for network_tensors in (tensors[:half], tensors[half:])
    ]
