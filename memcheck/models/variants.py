"""An architecture as a step or a framework changes it: rows with masks, layers of pictures, matrices apart, names."""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby

from memcheck.models.types import Architecture, Attention, Block, LatentAttention, Mlp, Moe, ParameterTensor
from memcheck.models.vision import OtherTower

PART = "language"
"""Part of an :class:`OtherTower` that holds the language model's idle layers: those that read pictures."""


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
    modalities = architecture.modalities._replace(other_towers=(*architecture.others, idle_tower))
    return architecture._replace(blocks=text_layers, modalities=modalities)


def with_pictures(architecture: Architecture, layers: tuple[int, ...]) -> Architecture:
    """Return the model of a step with pictures, where cross-attention layers run among the text layers.

    Undoes :func:`without_pictures`, which has put them into an idle tower. ``layers``: numbers of the layers that read
    pictures, among all layers.
    """
    cross_layers: list[Block] = []
    for tower in architecture.others:
        if tower.part == PART:
            for block, times in tower.blocks:
                cross_layers += [block] * times
    num_layers = architecture.num_layers + len(cross_layers)
    text_layer, cross_layer = iter(architecture.layers()), iter(cross_layers)
    all_layers = [next(cross_layer) if i in layers else next(text_layer) for i in range(num_layers)]
    blocks = tuple((block, len(list(equal_layers))) for block, equal_layers in groupby(all_layers))
    others = tuple(tower for tower in architecture.others if tower.part != PART)
    return architecture._replace(blocks=blocks, modalities=architecture.modalities._replace(other_towers=others))


@lru_cache(maxsize=64)
def padded(architecture: Architecture) -> Architecture:
    """Return the model with a padding mask for every sequence in its attention.

    In an encoder-decoder the encoder and the cross-attention have it. The decoder's own padding comes after all scored
    tokens, and needs none. An encoder of sounds has none.
    """
    encoder = architecture.encoder
    if encoder is None:
        return architecture._replace(blocks=_masked(architecture.blocks))
    if encoder.mel_bins:
        return architecture
    blocks = tuple((_with_cross_mask(block), count) for block, count in architecture.blocks)
    return architecture._replace(blocks=blocks, encoder=encoder._replace(blocks=_masked(encoder.blocks)))


def _with_cross_mask(block: Block) -> Block:
    """Return the layer where cross-attention applies the mask of the encoder's padding."""
    if block.cross is None:
        return block
    return block._replace(cross=block.cross._replace(attention=block.cross.attention._replace(row_masks="padding")))


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
    if architecture.vision is not None and architecture.vision.text_layers_that_read_images:
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


def unfused(architecture: Architecture) -> Architecture:
    """Return the model with query, key and value, and gate and up, as separate matrices; itself if none is fused.

    Their names are those of transformers' modules that are not fused, by which adapters choose layers.
    """
    blocks = tuple((_unfused_layer(block), times) for block, times in architecture.blocks)
    changed = any(new is not old for (new, _), (old, _) in zip(blocks, architecture.blocks, strict=True))
    return architecture._replace(blocks=blocks) if changed else architecture


def _unfused_layer(block: Block) -> Block:
    """Return the layer with its fused matrices of attention and MLP split; itself if none is fused."""
    mixer, mlp = block.mixer, block.mlp
    if isinstance(mixer, Attention) and mixer.fused_qkv == "slices":
        widths = (mixer.heads * mixer.head_dim, *(mixer.kv_heads * mixer.head_dim,) * 2)
        tensors = _split_rows(mixer.tensors, "qkv_proj", ("q_proj", "k_proj", "v_proj"), widths)
        block = block._replace(mixer=mixer._replace(fused_qkv="", tensors=tensors))
    if isinstance(mlp, Mlp) and mlp.fused_gate_up:
        tensors = _split_rows(mlp.tensors, "gate_up_proj", ("gate_proj", "up_proj"), (mlp.width, mlp.width))
        block = block._replace(mlp=mlp._replace(fused_gate_up=False, tensors=tensors))
    return block


def _split_rows(
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


NAMED = {
    "afmoe", "cohere2_moe", "deepseek_v2", "deepseek_v3", "deepseek_v32", "dots1", "ernie4_5_moe", "exaone_moe",
    "flex_olmo", "glm4_moe", "glm4_moe_lite", "glm4v_moe", "glm_moe_dsa", "hunyuan_v1_moe", "kimi_k2",
    "longcat_flash", "mellum", "minimax", "minimax_m2", "mixtral", "olmoe", "qwen3_moe", "qwen3_next",
    "qwen3_omni_moe_thinker", "solar_open",
}  # fmt: skip


def with_names(blocks: tuple[tuple[Block, int], ...], model_type: str) -> tuple[tuple[Block, int], ...]:
    """Mark the modules that LoRA targets by transformers 4's names of experts (``gate_proj``, ``up_proj``,
    ``down_proj``).

    In the model types of ``NAMED`` these names mean the stacked experts and no dense MLP; in all others the reverse.
    ``blocks``: (layer, how many).
    """
    named = model_type in NAMED
    return tuple((_named(block, named=named), count) for block, count in blocks)


def _named(block: Block, *, named: bool) -> Block:
    """Mark what adapters named ``gate_proj``... reach in one layer.

    ``named``: those names mean stacked experts, so that adapters on linear layers reach no MLP.
    """
    if isinstance(block.mixer, Attention) and block.mixer.gate_matrix:  # AFMoE calls it gate_proj, too
        block = block._replace(mixer=block.mixer._replace(gate_matrix="hidden" if named else "adaptable"))
    if isinstance(block.mlp, Moe):
        return block._replace(mlp=block.mlp._replace(adaptable=not named))
    return block._replace(mlp=block.mlp._replace(adaptable=not named)) if isinstance(block.mlp, Mlp) else block
