"""Fused projections taken apart, for frameworks whose modules never fuse them."""

from __future__ import annotations

from memcheck.models.types import Architecture, Attention, Block, Mlp, ParameterTensor


def unfused(architecture: Architecture) -> Architecture:
    """Return the model with query, key and value, and gate and up, as separate matrices; itself if none is fused.

    Their names are those of transformers' modules that are not fused, by which adapters choose layers.
    """
    blocks = tuple((_block(block), times) for block, times in architecture.blocks)
    changed = any(new is not old for (new, _), (old, _) in zip(blocks, architecture.blocks, strict=True))
    return architecture._replace(blocks=blocks) if changed else architecture


def _block(block: Block) -> Block:
    """Return the layer with its fused matrices of attention and MLP split; itself if none is fused."""
    mixer, mlp = block.mixer, block.mlp
    if isinstance(mixer, Attention) and mixer.fused_qkv == "slices":
        widths = (mixer.heads * mixer.head_dim, *(mixer.kv_heads * mixer.head_dim,) * 2)
        tensors = _apart(mixer.tensors, "qkv_proj", ("q_proj", "k_proj", "v_proj"), widths)
        block = block._replace(mixer=mixer._replace(fused_qkv="", tensors=tensors))
    if isinstance(mlp, Mlp) and mlp.fused_gate_up:
        tensors = _apart(mlp.tensors, "gate_up_proj", ("gate_proj", "up_proj"), (mlp.width, mlp.width))
        block = block._replace(mlp=mlp._replace(fused_gate_up=False, tensors=tensors))
    return block


def _apart(
    tensors: tuple[ParameterTensor, ...], fused: str, names: tuple[str, ...], widths: tuple[int, ...]
) -> tuple[ParameterTensor, ...]:
    """Split the matrix ``fused`` by rows into matrices of these names and widths (rows), and keep other tensors."""
    split_tensors: list[ParameterTensor] = []
    for tensor in tensors:
        if f".{fused}." not in tensor.name:
            split_tensors.append(tensor)
            continue
        for name, width in zip(names, widths, strict=True):
            shape = (width, *tensor.shape[1:])
            split_tensors.append(tensor._replace(name=tensor.name.replace(fused, name), shape=shape))
    return tuple(split_tensors)
