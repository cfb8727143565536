"""The parameter tensors of towers and projectors, and what of them wants a gradient.

Under FSDP1 stem, last norm and projector of a frozen tower are in one flat tensor with embedding, final norm and head,
as they are no layers. That tensor wants a gradient, so that a tower whose stem lies in it keeps its graph (torch 2.13
distributed/fsdp/_flat_param.py, ``_use_unsharded_views``). The optimizer steps on none of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.accounts.ranks import IDLE
from memcheck.accounts.state import LocalTensor
from memcheck.autograd.context import Adapter, Setting
from memcheck.autograd.tensor import rounded, rounded_bytes
from memcheck.frameworks.torch.rank_tensors import TensorPlacement, as_block, block_tensors, placement_of
from memcheck.frameworks.torch.tower_setup import (
    ATTENTION,
    EMBEDDING,
    embeds_apart,
    is_unsplit,
    names_classes,
    own_parts,
    parts_attention,
)
from memcheck.job.images import are_there, pictures_of
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture, Block, ParameterTensor
from memcheck.models.vision import Vision


def part_setting(job: TrainingJob, base: Setting, part: str) -> Setting:
    """Return the setting of one part of the model: whether it is trained, and which of its modules have adapters."""
    placement = placement_of(job, part)
    return base._replace(trained=placement.trained, adapter=placement.adapter, frozen_modules=placement.frozen)


def shrunk(vision: Vision, setting: Setting) -> Setting:
    """Return the setting of the layers after the module that merges several rows of patches into one."""
    rows_merged = vision.between.merges if vision.between is not None else 1
    sizes = tuple(rows // rows_merged for rows in setting.rows_per_image)
    return setting._replace(sequence=setting.sequence // rows_merged, rows_per_image=sizes)


def closing_norms(vision: Vision) -> tuple[ParameterTensor, ...]:
    """Return the tensors of the tower's last norm or neck.

    Any other tensor after the layers is frozen or trained with the projector.
    """
    return tuple(t for t in vision.closing if t.group in ("norm", "vision"))


def part_tensors(block: Block, setting: Setting, part: str = "") -> tuple[LocalTensor, ...]:
    """Return the tensors of a block, adapters included. ``part``: name of the part if the block is not a layer."""
    tensors = block_tensors(
        block, TensorPlacement(trained=setting.trained, frozen=setting.frozen_modules, adapter=setting.adapter)
    )
    return tuple(t._replace(part=part) for t in tensors) if part else tensors


def ending_tensors(vision: Vision, projector: tuple[ParameterTensor, ...], setting: Setting) -> tuple[LocalTensor, ...]:
    """The tensors of the projector, and of what runs between the tower's layers and the projector."""
    norms = {t.name for t in closing_norms(vision)}
    tensors = part_tensors(as_block(vision.closing + projector), setting, "projector")
    return tuple(t._replace(part="vision") if t.name in norms else t for t in tensors)


PROBE = "head.probe"
"""SigLIP's attention pooling has it (modeling_siglip.py, ``SiglipMultiheadAttentionPoolingHead``)."""


def idle_group(job: TrainingJob, block: Block) -> str:
    """The FSDP group of a block that does not run: ``layer``, a unit of its own, or ``beside``, the root's."""
    layer = block.mixer is not None or block.mlp is not None
    pools = names_classes(job) and any(t.name == PROBE for t in block.extra_tensors)
    return "layer" if layer or pools else "beside"


def idle_tensors(job: TrainingJob, block: Block, adapter: Adapter | None, *, trained: bool) -> tuple[LocalTensor, ...]:
    """Return the tensors of a block that does not run, with its adapters, which are resident as well.

    ``trained``: its parameters require a gradient, which they never get.
    """
    tensors = block_tensors(block, TensorPlacement(trained=trained, adapter=adapter))
    group, architecture = idle_group(job, block), job.architecture
    vision = architecture.vision if isinstance(architecture, Architecture) else None
    own_modules = own_parts(job, vision) if vision is not None else {}
    has_tower_units = vision is None or not is_unsplit(job, vision)

    def waits(name: str) -> str:
        if group == "beside":
            return "layer" if name.startswith(own_modules.get("beside", ("none",))) else group
        return group if has_tower_units and name.startswith(own_modules.get(IDLE, ("",))) else "beside"

    return tuple(t._replace(trained=False, waits=waits(t.name) if t.trained else "") for t in tensors)


def reaches(setting: Setting, block: Block) -> bool:
    """Whether some linear layer of the block has an adapter."""
    return any(".lora_" in t.name for t in part_tensors(block, setting))


def idle_blocks(architecture: Architecture, *, has_pictures: bool) -> list[tuple[Block, int, str]]:
    """Return the blocks that are resident and never run or never get a gradient: (block, count, part of the model).

    These are towers without inputs, and layers after the one whose output is read. ``has_pictures``: samples have
    images; if not, the vision tower and its projector do not run.
    """
    idle = [(block, count, other.part) for other in architecture.others for block, count in other.blocks]
    idle += [(as_block(other.tensors), 1, other.part) for other in architecture.others if other.tensors]
    vision = architecture.vision
    if vision is None:
        return idle
    if vision.unused:
        idle.append((as_block(vision.unused), 1, "vision"))
    if not has_pictures:
        idle += [(block, count, "vision") for block, count in vision.blocks + vision.idle]
        idle += [
            (as_block(vision.stem + vision.between_tensors + vision.closing), 1, "vision"),
            (as_block(vision.projector), 1, "projector"),
        ]
    return idle


def side_tensors(job: TrainingJob, architecture: Architecture) -> Iterator[tuple[LocalTensor, ...]]:
    """Yield the tensors of a rank outside the language model, unit by unit: encoder, unused blocks, vision tower,
    projector.
    """
    if architecture.encoder is not None:
        placement = placement_of(job, "encoder")
        for block, count in architecture.encoder.blocks:
            yield from count * [block_tensors(block, placement)]
        yield block_tensors(as_block(architecture.encoder.tensors), placement)
    vision, has_pictures = architecture.vision, are_there(job)
    for block, count, part in idle_blocks(architecture, has_pictures=has_pictures):
        placement = placement_of(job, part)
        yield from count * [idle_tensors(job, block, placement.adapter, trained=placement.trained)]
    if vision is None or not has_pictures:
        return
    tower, projector = placement_of(job, "vision"), placement_of(job, "projector")
    yield _of("vision", block_tensors(as_block(vision.stem), tower))
    if vision.between:
        yield _of("vision", block_tensors(as_block(vision.between.tensors), tower))
    for block, count in vision.idle:
        yield from count * [idle_tensors(job, block, tower.adapter, trained=tower.trained)]
    for block, count in vision.blocks:
        yield from count * [block_tensors(block, tower)]
    norms = closing_norms(vision)
    if norms:
        yield _of("vision", block_tensors(as_block(norms), tower))
    projector_tensors = tuple(t for t in vision.closing if t not in norms) + vision.projector
    yield _of("projector", block_tensors(as_block(projector_tensors), projector))


def _of(part: str, tensors: tuple[LocalTensor, ...]) -> tuple[LocalTensor, ...]:
    """Return the tensors with the name of the part of the model that they belong to."""
    return tuple(t._replace(part=part) for t in tensors)


def side_buffers(architecture: Architecture, dtype: str) -> int:
    """Return the bytes of the towers' buffers: bounds of clamped projections, and statistics that standardise pooled
    rows.
    """
    buffers = [buffer for other in architecture.others for buffer in other.buffers]
    buffers += architecture.vision.buffers if architecture.vision is not None else ()
    return sum(
        buffer.number * rounded_bytes((buffer.elements,), "fp32" if buffer.fp32 else dtype) for buffer in buffers
    )


def pixel_bytes(job: TrainingJob, architecture: Architecture) -> int:
    """Return the bytes of a micro-batch's ``pixel_values``, padding mask, positions and cross-attention mask.

    They are arguments of the model's forward and live all step. ``pixel_values`` are in fp32 unless the caller casts.
    """
    vision, images = architecture.vision, job.images
    if vision is None:
        sides = [embedder.side for embedder in architecture.embedders if embedder.tokens] if images is not None else []
        return sum(rounded_bytes((job.rows * images.pictures, 3, side, side), "fp32") for side in sides if images)
    pictures = pictures_of(job, vision)
    rows = pictures.rows - vision.classes * pictures.pictures
    if not rows:
        return 0
    mask = rounded(vision.mask_bytes * rows * vision.patch * vision.patch)
    positions = rounded(vision.position_bytes * rows)
    cross_attention_mask = rounded(
        8
        * job.rows
        * job.sequence_length
        * (vision.cross.tiles if vision.cross is not None else 0)
        * (pictures.pictures // job.rows)
    )
    pixels = rounded_bytes((rows, vision.channels), "fp32" if vision.cast else job.recipe.params)
    return pixels + mask + positions + cross_attention_mask


FROZEN_LAYERS, FROZEN_ATTENTION, FROZEN_EMBEDDING = "vision:layers", "vision:attention", "vision:embedding"
"""Words in place of ``vision``: what of a frozen tower wants no gradient."""


def flattened_parts(
    job: TrainingJob, architecture: Architecture, vision: Vision, freeze: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the words of ``freeze`` where FSDP1 flattens the model: parts are replaced by what of them gets no
    gradient.
    """
    words: list[str] = []
    for word in freeze:
        if word == "vision" and not is_unsplit(job, vision):
            words.append(FROZEN_ATTENTION if parts_attention(job, vision) else FROZEN_LAYERS)
            words += [FROZEN_EMBEDDING] if embeds_apart(job, vision) else []
        elif word == "language":
            words.append(f"layers:0-{architecture.num_layers}")
        elif word not in ("vision", "projector"):
            words.append(word)
    return tuple(words)


def layers_of_tower(job: TrainingJob, tower: Setting) -> Setting:
    """Return the setting of a tower's layers where FSDP1 flattens them: frozen layers, or frozen attention modules."""
    if FROZEN_LAYERS in job.freeze:
        return tower._replace(trained=False)
    if FROZEN_ATTENTION in job.freeze:
        return tower._replace(frozen_modules=tuple(name.removesuffix(".") for name in ATTENTION))
    return tower


def stem_of_tower(job: TrainingJob, tower: Setting, vision: Vision) -> Setting:
    """Return the setting of a tower's stem where FSDP1 flattens it: its embedding may be frozen alone."""
    if FROZEN_EMBEDDING not in job.freeze:
        return tower
    names = tuple(t.name.removesuffix(".weight") for t in vision.stem if t.name.startswith(EMBEDDING))
    return tower._replace(frozen_modules=names, trained=len(names) < len(vision.stem))
