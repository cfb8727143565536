"""CodeGen (modeling_codegen.py): GPT-J with one matrix for queries, values and keys in four slices."""

from __future__ import annotations

from memcheck.models.decoder import Projections, StackDimensions, grouped_attention
from memcheck.models.families.gptj import read as read_gptj
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Attention

PROJECTIONS = Projections(("qkv_proj",), "out_proj", "attn")


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: codegen``: GPT-J, whose queries, values and keys come from one matrix in
    four slices.
    """
    config.ignore("n_ctx", "scale_attn_weights")
    architecture = read_gptj(config)
    ((block, layers),) = architecture.blocks
    was = block.mixer
    if not isinstance(was, Attention):
        return architecture
    if was.heads % 4:
        config.fail("n_head", f"{was.heads} heads cannot be cut into four slices", "use a multiple of 4")
    size = StackDimensions(
        hidden=architecture.hidden_size,
        layers=layers,
        heads=was.heads,
        kv_heads=was.heads,
        head_dim=was.head_dim,
        vocab=architecture.vocab_size,
        positions=architecture.max_position_embeddings,
    )
    made = grouped_attention(size, PROJECTIONS)
    mixer = was._replace(tensors=made.tensors, fused_qkv="shards")
    return architecture._replace(blocks=((block._replace(mixer=mixer), layers),))
