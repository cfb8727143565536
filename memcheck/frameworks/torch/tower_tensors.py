"""The parameter tensors of towers and projectors, and what of them wants a gradient.

Under FSDP1 stem, last norm and projector of a frozen tower are in one flat tensor with embedding, final norm and head,
as they are no layers. That tensor wants a gradient, so that a tower whose stem lies in it keeps its graph (torch 2.13
distributed/fsdp/_flat_param.py, ``_use_unsharded_views``). The optimizer steps on none of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.accounts.state import LocalTensor
from memcheck.accounts.unit import IDLE
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
    """The setting of a part: whether it is trained, and whether adapters reach it."""
    held = placement_of(job, part)
    return base._replace(trained=held.trained, adapter=held.adapter, frozen_modules=held.frozen)


def shrunk(vision: Vision, setting: Setting) -> Setting:
    """The setting after the module that merges ``shrinks`` rows into one."""
    each = vision.between.merges if vision.between is not None else 1
    sizes = tuple(rows // each for rows in setting.rows_per_image)
    return setting._replace(sequence=setting.sequence // each, rows_per_image=sizes)


def closing_norms(vision: Vision) -> tuple[ParameterTensor, ...]:
    """The tower's last norm, or its neck. Anything else after the layers is frozen and trained with the projector."""
    return tuple(t for t in vision.closing if t.group in ("norm", "vision"))


def part_tensors(block: Block, setting: Setting, part: str = "") -> tuple[LocalTensor, ...]:
    """The tensors of a block of that part, adapters included. ``part``: it is no layer, and of which part it is."""
    found = block_tensors(
        block, TensorPlacement(trained=setting.trained, frozen=setting.frozen_modules, adapter=setting.adapter)
    )
    return tuple(t._replace(part=part) for t in found) if part else found


def ending_tensors(vision: Vision, projector: tuple[ParameterTensor, ...], setting: Setting) -> tuple[LocalTensor, ...]:
    """The tensors of the projector, and of what runs between the tower's layers and the projector."""
    norms = {t.name for t in closing_norms(vision)}
    found = part_tensors(as_block(vision.closing + projector), setting, "projector")
    return tuple(t._replace(part="vision") if t.name in norms else t for t in found)


PROBE = "head.probe"
"""SigLIP's attention pooling has it (modeling_siglip.py, ``SiglipMultiheadAttentionPoolingHead``)."""


def idle_group(job: TrainingJob, block: Block) -> str:
    """The FSDP group of a block that does not run: ``layer``, a unit of its own, or ``beside``, the root's."""
    layer = block.mixer is not None or block.mlp is not None
    pools = names_classes(job) and any(t.name == PROBE for t in block.extra_tensors)
    return "layer" if layer or pools else "beside"


def idle_tensors(job: TrainingJob, block: Block, adapter: Adapter | None, *, trained: bool) -> tuple[LocalTensor, ...]:
    """The tensors of a block that no gradient reaches, with its adapters, which are resident as well.

    ``trained``: its own parameters want a gradient all the same.
    """
    found = block_tensors(block, TensorPlacement(trained=trained, adapter=adapter))
    where, architecture = idle_group(job, block), job.architecture
    vision = architecture.vision if isinstance(architecture, Architecture) else None
    own = own_parts(job, vision) if vision is not None else {}
    whole = vision is None or not is_unsplit(job, vision)

    def waits(name: str) -> str:
        if where == "beside":
            return "layer" if name.startswith(own.get("beside", ("none",))) else where
        return where if whole and name.startswith(own.get(IDLE, ("",))) else "beside"

    return tuple(t._replace(trained=False, waits=waits(t.name) if t.trained else "") for t in found)


def reaches(setting: Setting, block: Block) -> bool:
    """Whether some linear layer of the block has an adapter."""
    return any(".lora_" in t.name for t in part_tensors(block, setting))


def idle_blocks(architecture: Architecture, *, sees: bool) -> list[tuple[Block, int, str]]:
    """What is resident and never gets a gradient, as blocks with their number and part: towers without inputs, layers
    after the features. ``sees``: samples have pictures.
    """
    found = [(block, n, other.part) for other in architecture.others for block, n in other.blocks]
    found += [(as_block(other.tensors), 1, other.part) for other in architecture.others if other.tensors]
    v = architecture.vision
    if v is None:
        return found
    if v.unused:
        found.append((as_block(v.unused), 1, "vision"))
    if not sees:
        found += [(block, n, "vision") for block, n in v.blocks + v.idle]
        found += [
            (as_block(v.stem + v.between_tensors + v.closing), 1, "vision"),
            (as_block(v.projector), 1, "projector"),
        ]
    return found


def side_tensors(job: TrainingJob, architecture: Architecture) -> Iterator[tuple[LocalTensor, ...]]:
    """The tensors of everything outside the language model, unit by unit."""
    if architecture.encoder is not None:
        held = placement_of(job, "encoder")
        for block, n in architecture.encoder.blocks:
            yield from n * [block_tensors(block, held)]
        yield block_tensors(as_block(architecture.encoder.tensors), held)
    v, sees = architecture.vision, are_there(job)
    for block, n, part in idle_blocks(architecture, sees=sees):
        held = placement_of(job, part)
        yield from n * [idle_tensors(job, block, held.adapter, trained=held.trained)]
    if v is None or not sees:
        return
    tower, projector = placement_of(job, "vision"), placement_of(job, "projector")
    yield _of("vision", block_tensors(as_block(v.stem), tower))
    if v.between:
        yield _of("vision", block_tensors(as_block(v.between.tensors), tower))
    for block, n in v.idle:
        yield from n * [idle_tensors(job, block, tower.adapter, trained=tower.trained)]
    for block, n in v.blocks:
        yield from n * [block_tensors(block, tower)]
    norms = closing_norms(v)
    if norms:
        yield _of("vision", block_tensors(as_block(norms), tower))
    rest = tuple(t for t in v.closing if t not in norms) + v.projector
    yield _of("projector", block_tensors(as_block(rest), projector))


def _of(part: str, tensors: tuple[LocalTensor, ...]) -> tuple[LocalTensor, ...]:
    return tuple(t._replace(part=part) for t in tensors)


def side_buffers(architecture: Architecture, dtype: str) -> int:
    """Buffers of the towers: bounds of clamped projections, one number each, and what standardises pooled rows."""
    held = [each for other in architecture.others for each in other.buffers]
    held += architecture.vision.buffers if architecture.vision is not None else ()
    return sum(each.number * rounded_bytes((each.elements,), "fp32" if each.fp32 else dtype) for each in held)


def pixel_bytes(job: TrainingJob, architecture: Architecture) -> int:
    """``pixel_values`` in fp32, as the processor made them, and their padding mask, which stay all step."""
    vision, stated = architecture.vision, job.images
    if vision is None:
        sides = [e.side for e in architecture.embedders if e.tokens] if stated is not None else []
        return sum(rounded_bytes((job.rows * stated.pictures, 3, side, side), "fp32") for side in sides if stated)
    found = pictures_of(job, vision)
    rows = found.rows - vision.classes * found.pictures
    if not rows:
        return 0
    mask = rounded(vision.mask_bytes * rows * vision.patch * vision.patch)
    positions = rounded(vision.position_bytes * rows)
    crossing = rounded(
        8
        * job.rows
        * job.sequence_length
        * (vision.cross.tiles if vision.cross is not None else 0)
        * (found.pictures // job.rows)
    )
    pixels = rounded_bytes((rows, vision.channels), "fp32" if vision.cast else job.recipe.params)
    return pixels + mask + positions + crossing


FROZEN_LAYERS, FROZEN_ATTENTION, FROZEN_EMBEDDING = "vision:layers", "vision:attention", "vision:embedding"
"""Words in place of ``vision``: what of a frozen tower wants no gradient."""


def flattened_parts(
    job: TrainingJob, architecture: Architecture, vision: Vision, freeze: tuple[str, ...]
) -> tuple[str, ...]:
    """The words of ``freeze``, with those in place of parts that say what of them wants no gradient."""
    found: list[str] = []
    for word in freeze:
        if word == "vision" and not is_unsplit(job, vision):
            found.append(FROZEN_ATTENTION if parts_attention(job, vision) else FROZEN_LAYERS)
            found += [FROZEN_EMBEDDING] if embeds_apart(job, vision) else []
        elif word == "language":
            found.append(f"layers:0-{architecture.num_layers}")
        elif word not in ("vision", "projector"):
            found.append(word)
    return tuple(found)


def layers_of_tower(job: TrainingJob, tower: Setting) -> Setting:
    """The setting of a tower's layers."""
    if FROZEN_LAYERS in job.freeze:
        return tower._replace(trained=False)
    if FROZEN_ATTENTION in job.freeze:
        return tower._replace(frozen_modules=tuple(name.removesuffix(".") for name in ATTENTION))
    return tower


def stem_of_tower(job: TrainingJob, tower: Setting, vision: Vision) -> Setting:
    """The setting of a tower's stem."""
    if FROZEN_EMBEDDING not in job.freeze:
        return tower
    names = tuple(t.name.removesuffix(".weight") for t in vision.stem if t.name.startswith(EMBEDDING))
    return tower._replace(frozen_modules=names, trained=len(names) < len(vision.stem))
