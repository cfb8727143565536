"""Llama 3.2 Vision's language model: Llama's layers, and between them layers that read pictures alone.

modeling_mllama.py of transformers 5.23. Without pictures the layers of the second kind hold their weights and do not
run (MllamaTextModel.forward), which is what this reads.
:mod:`memcheck.models.variants` puts them in their places.
"""

from __future__ import annotations

from memcheck.models.decoder import (
    Projections,
    StackDimensions,
    decoder,
    gated_mlp,
    grouped_attention,
    pre_norm_block,
    read_sizes,
    stack,
)
from memcheck.models.module_types import KERNELS
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block, Mlp, Norm, ParameterTensor, PictureBlock
from memcheck.models.variants import without_pictures

EXTRA_ROWS = 8
"""Rows of the embedding beyond the head's: ``vocab_size + 8``, for the token of a picture."""
CROSSING = "cross_attention_layers"


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: mllama_text_model``.

    Llama's layers, with cross-attention to pictures in the layers that the configuration lists.
    """
    size = read_sizes(config, kv_heads="required", head_dim_key=False)
    if config.dropout("dropout"):
        config.fail("dropout", "dropout of cross attention has no memory model", "write 0")
    mlp = gated_mlp(size.hidden, config.integer("intermediate_size"), config.activation())
    text_block = pre_norm_block(size.hidden, grouped_attention(size), mlp)
    cross_block = _crossing(size, mlp)
    cross_layers = crossing_layers(config)
    blocks = stack(
        (i in cross_layers for i in range(size.layers)), lambda crosses: cross_block if crosses else text_block
    )
    return without_pictures(decoder(config, size, blocks, tied=False, extra_rows=EXTRA_ROWS))


def crossing_layers(config: ConfigReader) -> tuple[int, ...]:
    """Read the indices of the layers whose attention reads pictures (``cross_attention_layers``)."""
    stated_layers = config.integers(CROSSING)
    if stated_layers is None:
        config.fail(CROSSING, f"{CROSSING} is missing", "state the numbers of the layers that read pictures, or []")
    return stated_layers


def _crossing(size: StackDimensions, mlp: Mlp) -> Block:
    """Build a layer whose attention reads the pictures' projected rows; a learned scalar gates each of its two
    branches.
    """
    norms = [Norm("rmsnorm", size.head_dim, name=f"cross_attn.{which}_norm") for which in "qk"]
    attention = grouped_attention(
        size, Projections(module="cross_attn"), rotary_dim=0, query_norm=norms[0], key_norm=norms[1], cross=True,
        kernels=KERNELS._replace(explicit_mask=True), bidirectional=True,
    )  # fmt: skip
    gates = tuple(ParameterTensor(f"cross_attn_{which}_gate", (1,), "attention") for which in ("attn", "mlp"))
    block = pre_norm_block(size.hidden, attention, mlp)
    return PictureBlock(*block._replace(extra_tensors=gates, branch_scale="tanh"))
