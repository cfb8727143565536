"""The parameter tensors of towers and projectors, and what of them wants a gradient.

Under FSDP1 stem, last norm and projector of a frozen tower are in one flat tensor with embedding, final norm and head,
as they are no layers. That tensor wants a gradient, so that a tower whose stem lies in it keeps its graph (torch 2.13
distributed/fsdp/_flat_param.py, ``_use_unsharded_views``). The optimizer steps on none of it.

How a framework treats a tower: which modules FSDP makes groups of, and which outputs live until the loss.

FSDP wraps by the classes that a model names, or layer by layer. Source: ``_no_split_modules`` of transformers 5.24's
classes, of every model inside of one.

Units of a tower that do not run or whose output is unused: layers after the features, pooling, idle layers.

The parameter tensors of a whole pipeline rank, or of a whole model. Nothing is replayed.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from memcheck.accounts.ranks import NEVER_RUN, NEVER_RUN_PART, OF_LANGUAGE, TOWERS, WRAPPED, Part, Run, Unit
from memcheck.accounts.state import LocalTensor
from memcheck.autograd import Tape, Value
from memcheck.autograd.context import Adapter, Context, Setting
from memcheck.autograd.curve import Curve, Peak, checkpointed, peak_of
from memcheck.autograd.tensor import ITEM_BYTES, Dim, Leaf, rounded, rounded_bytes
from memcheck.families.tower import tower_forward
from memcheck.frameworks.registry import layers_of
from memcheck.frameworks.torch.ddp import buckets
from memcheck.frameworks.torch.rank_tensors import (
    TensorPlacement,
    as_block,
    as_framework_builds,
    as_stored,
    block_tensors,
    embedding_unit_tensors,
    frozen_layers,
    head_unit_tensors,
    layer_tensors,
    placement_of,
    stream_dtype,
)
from memcheck.job.images import Pictures, are_there, gives, has_outputs, pictures_of
from memcheck.job.types import TrainingJob
from memcheck.job.versions import version_of_models
from memcheck.models.types import Architecture, Block, ParameterTensor
from memcheck.models.vision import Vision

ATTENTION = ("self_attn.", "attention.")
"""Prefixes of the tensors of a layer's attention."""
EMBEDDING = ("embeddings.", "patch_embedder.")
"""Prefixes of the tensors of a stem's own module."""
RESAMPLER = ("perceiver_resampler.layers.", "modality_projection.")
"""Prefixes of the tensors of a projector's wrapped modules. They run one by one, and are one unit here."""


def names_classes(job: TrainingJob) -> bool:
    """Whether the framework wraps the classes that a model names, and no other modules."""
    return job.framework.unsplit is not None


def is_unsplit(job: TrainingJob, vision: Vision) -> bool:
    """Whether the whole tower belongs to FSDP's root group."""
    return names_classes(job) and not tower_forward(vision.kind).wrapped_modules


def parts_attention(job: TrainingJob, vision: Vision) -> bool:
    """Whether FSDP wraps the attention of each tower layer and leaves the rest of the layer to the root."""
    return names_classes(job) and "attention" in tower_forward(vision.kind).wrapped_modules


def embeds_apart(job: TrainingJob, vision: Vision) -> bool:
    """Whether FSDP wraps the patch embedding."""
    return names_classes(job) and "embedding" in tower_forward(vision.kind).wrapped_modules


def wrapped_of(job: TrainingJob, vision: Vision) -> tuple[str, ...]:
    """Return the kinds of modules that FSDP wraps: layers, and for some towers the patch embedding or the projector."""
    if is_unsplit(job, vision):
        return OF_LANGUAGE
    embedded = ("stem",) if embeds_apart(job, vision) else ()
    return (
        WRAPPED
        + embedded
        + (("projector",) if names_classes(job) and "projector" in tower_forward(vision.kind).wrapped_modules else ())
    )


def own_parts(job: TrainingJob, vision: Vision) -> dict[str, tuple[str, ...]]:
    """Return the name prefixes of tensors in FSDP units of their own, by kind of unit; the root has all others."""
    modules_by_part: dict[str, tuple[str, ...]] = {}
    if parts_attention(job, vision):
        modules_by_part |= dict.fromkeys(TOWERS, ATTENTION)
    if embeds_apart(job, vision):
        modules_by_part["stem"] = EMBEDDING
    if names_classes(job) and "projector" in tower_forward(vision.kind).wrapped_modules:
        modules_by_part["projector"] = RESAMPLER
    if "stem" in modules_by_part or "projector" in modules_by_part:  # idle
        modules_by_part[NEVER_RUN_PART] = modules_by_part.get("stem", ()) + modules_by_part.get("projector", ())
    return modules_by_part


def gives_towers(job: TrainingJob, vision: Vision) -> bool:
    """Say whether the model's output carries the tower's rows and image tokens."""
    framework = job.framework
    if not has_outputs(vision, framework):
        return False
    return gives(version_of_models(job, framework))


def keeps_outputs(job: TrainingJob, vision: Vision) -> bool:
    """Whether a tower's outputs live until the loss is computed."""
    return vision.outputs_live_until_loss or gives_towers(job, vision)


def has_ddp_sink(job: TrainingJob, vision: Vision) -> bool:
    """Say whether DDP's function goes through trained layers after the features: they get no gradient, so that DDP has
    to be told to look for such.
    """
    trained = job.lora is not None or "vision" not in job.freeze
    if not (vision.idle_blocks and trained and gives_towers(job, vision)):
        return False

    return buckets(job).exist


def part_setting(job: TrainingJob, base: Setting, part: str) -> Setting:
    """Return the setting of one part of the model: whether it is trained, and which of its modules have adapters."""
    placement = placement_of(job, part)
    return base._replace(trained=placement.trained, adapter=placement.adapter, frozen_modules=placement.frozen)


def shrunk(vision: Vision, setting: Setting) -> Setting:
    """Return the setting of the layers after the module that merges several rows of patches into one."""
    rows_merged = vision.middle.rows_per_merged_row if vision.middle is not None else 1
    sizes = tuple(rows // rows_merged for rows in setting.rows_per_image)
    return setting._replace(sequence=setting.sequence // rows_merged, rows_per_image=sizes)


def closing_norms(vision: Vision) -> tuple[ParameterTensor, ...]:
    """Return the tensors of the tower's last norm or neck.

    Any other tensor after the layers is frozen or trained with the projector.
    """
    return tuple(t for t in vision.closing_tensors if t.group in ("norm", "vision"))


def part_tensors(block: Block, setting: Setting, part: str = "") -> tuple[LocalTensor, ...]:
    """Return the tensors of a block, adapters included. ``part``: name of the part if the block is not a layer."""
    tensors = block_tensors(
        block, TensorPlacement(trained=setting.trained, frozen=setting.frozen_modules, adapter=setting.adapter)
    )
    return tuple(t._replace(part=part) for t in tensors) if part else tensors


def ending_tensors(vision: Vision, projector: tuple[ParameterTensor, ...], setting: Setting) -> tuple[LocalTensor, ...]:
    """The tensors of the projector, and of what runs between the tower's layers and the projector."""
    norms = {t.name for t in closing_norms(vision)}
    tensors = part_tensors(as_block(vision.closing_tensors + projector), setting, "projector")
    return tuple(t._replace(part="vision") if t.name in norms else t for t in tensors)


PROBE = "head.probe"
"""SigLIP's attention pooling has it (modeling_siglip.py, ``SiglipMultiheadAttentionPoolingHead``)."""


def idle_group(job: TrainingJob, block: Block) -> str:
    """The FSDP group of a block that does not run: ``layer``, a unit of its own, or ``root``."""
    layer = block.mixer is not None or block.mlp is not None
    pools = names_classes(job) and any(t.name == PROBE for t in block.extra_tensors)
    return "layer" if layer or pools else "root"


def idle_tensors(job: TrainingJob, block: Block, adapter: Adapter | None, *, trained: bool) -> tuple[LocalTensor, ...]:
    """Return the tensors of a block that does not run, with its adapters, which are resident as well.

    ``trained``: its parameters require a gradient, which they never get.
    """
    tensors = block_tensors(block, TensorPlacement(trained=trained, adapter=adapter))
    group, architecture = idle_group(job, block), job.architecture
    vision = architecture.vision if isinstance(architecture, Architecture) else None
    own_modules = own_parts(job, vision) if vision is not None else {}
    has_tower_units = vision is None or not is_unsplit(job, vision)

    def group_of(name: str) -> str:
        """Return the FSDP group of a tensor that never runs: ``layer`` or ``root``."""
        if group == "root":
            return "layer" if name.startswith(own_modules.get(NEVER_RUN_PART, ("none",))) else group
        return group if has_tower_units and name.startswith(own_modules.get(NEVER_RUN, ("",))) else "root"

    return tuple(t._replace(trained=False, idle_fsdp_group=group_of(t.name) if t.trained else "") for t in tensors)


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
    if vision.unused_tensors:
        idle.append((as_block(vision.unused_tensors), 1, "vision"))
    if not has_pictures:
        idle += [(block, count, "vision") for block, count in vision.blocks + vision.idle_blocks]
        idle += [
            (as_block(vision.stem_tensors + vision.middle_tensors + vision.closing_tensors), 1, "vision"),
            (as_block(vision.projector_tensors), 1, "projector"),
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
    yield _of("vision", block_tensors(as_block(vision.stem_tensors), tower))
    if vision.middle:
        yield _of("vision", block_tensors(as_block(vision.middle.tensors), tower))
    for block, count in vision.idle_blocks:
        yield from count * [idle_tensors(job, block, tower.adapter, trained=tower.trained)]
    for block, count in vision.blocks:
        yield from count * [block_tensors(block, tower)]
    norms = closing_norms(vision)
    if norms:
        yield _of("vision", block_tensors(as_block(norms), tower))
    projector_tensors = tuple(t for t in vision.closing_tensors if t not in norms) + vision.projector_tensors
    yield _of("projector", block_tensors(as_block(projector_tensors), projector))


def _of(part: str, tensors: tuple[LocalTensor, ...]) -> tuple[LocalTensor, ...]:
    """Return the tensors with the name of the part of the model that they belong to."""
    return tuple(t._replace(part=part) for t in tensors)


def side_buffers(architecture: Architecture, dtype: str) -> int:
    """Return the bytes of the towers' buffers: bounds of clamped projections, and statistics that standardise pooled
    rows.
    """
    total = 0
    for tower in (*architecture.others, architecture.vision):
        for buffer in tower.buffers if tower is not None else ():
            total += buffer.copies * rounded_bytes((buffer.elements,), "fp32" if buffer.is_fp32 else dtype)
    return total


def pixel_bytes(job: TrainingJob, architecture: Architecture) -> int:
    """Return the bytes of a micro-batch's ``pixel_values``, padding mask, positions and cross-attention mask.

    They are arguments of the model's forward and live all step. ``pixel_values`` are in fp32 unless the caller casts.
    """
    vision, images = architecture.vision, job.images
    if vision is None:
        if images is None:
            return 0
        sides = [embedder.side_pixels for embedder in architecture.embedders if embedder.image_tokens]
        return sum(rounded_bytes((job.rows * images.pictures_per_sample, 3, side, side), "fp32") for side in sides)
    pictures = pictures_of(job, vision)
    rows = pictures.patches - vision.class_tokens_per_tile * pictures.pictures
    if not rows:
        return 0
    mask = rounded(vision.mask_bytes_per_pixel * rows * vision.patch_side * vision.patch_side)
    positions = rounded(vision.position_bytes_per_patch * rows)
    cross_attention_mask = 0
    if vision.cross_attention is not None:  # [rows, tokens, pictures of a row, tiles]
        tiles_per_row = vision.cross_attention.tiles_per_picture * (pictures.pictures // job.rows)
        cross_attention_mask = rounded(job.rows * job.sequence_length * tiles_per_row * ITEM_BYTES["int64"])
    pixels = rounded_bytes(
        (rows, vision.values_per_patch), "fp32" if vision.pixels_arrive_in_fp32 else job.recipe.params
    )
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
    names = tuple(t.name.removesuffix(".weight") for t in vision.stem_tensors if t.name.startswith(EMBEDDING))
    return tower._replace(frozen_modules=names, trained=len(names) < len(vision.stem_tensors))


NO_HIGH = Peak(0, "", ())
NOTHING_RUNS = Curve(
    saved_bytes=0,
    saved_inventory=(),
    saved_components=(),
    autocast_cache_bytes=0,
    forward_peak=NO_HIGH,
    backward_peak=NO_HIGH,
    gradient_bytes=0,
)


def idle_units(job: TrainingJob, architecture: Architecture, base: Setting, pictures: Pictures) -> list[Run]:
    """Return the units whose weights are resident and do not run; equal layers are one run.

    ``base``: the setting of the language model. ``pictures``: those of a micro-batch.
    """
    idle = idle_blocks(architecture, has_pictures=pictures.patches > 0)
    return [Run(_idle(job, block, part_setting(job, base, part)), count) for block, count, part in idle]


POOLING_TENSORS = 6
"""Tensors as large as all patches that are live at the peak of nn.MultiheadAttention of one query."""


def split_pooling(idle: list[Run], vision: Vision, pictures: Pictures, base: Setting) -> tuple[list[Run], list[Run]]:
    """Split units whose output no loss reads into those that do not run, and SigLIP's attention pooling, which runs.

    The pooling runs after the tower's layers, as an FSDP unit by itself (``_no_split_modules``): its activations are
    live with its gathered parameters. ``pictures``: those of a micro-batch. ``base``: the language model's setting.
    """
    row_bytes = rounded_bytes((pictures.patches, vision.hidden), base.autocast_dtype or base.param_dtype)
    pooling_bytes = POOLING_TENSORS * row_bytes
    highest = Peak(pooling_bytes, "keys and values", (("activations", pooling_bytes),))
    curve = NOTHING_RUNS._replace(forward_peak=highest)
    not_run, pooling = [], []
    for run in idle:
        unit = run.unit
        if not pictures.patches or all(t.name != PROBE for t in unit.tensors):
            not_run.append(run)
            continue
        kind = "idle" if unit.kind == NEVER_RUN else unit.kind
        unit = unit._replace(kind=kind, name="attention pooling", first_curve=curve, later_curve=curve)
        pooling.append(Run(unit, 1))
    return not_run, pooling


def _idle(job: TrainingJob, block: Block, setting: Setting) -> Unit:
    """Return the unit of a block that does not run: it has no gradient and no optimizer state.

    A block that is not a layer is in the root's FSDP group, which is gathered all step.
    """
    kind = NEVER_RUN if idle_group(job, block) == "layer" else NEVER_RUN_PART
    tensors = idle_tensors(job, block, setting.adapter, trained=setting.trained)
    return Unit(kind=kind, name="idle layer", tensors=tensors, first_curve=NOTHING_RUNS, later_curve=NOTHING_RUNS)


def passing_unit(job: TrainingJob, block: Block, setting: Setting, recompute: str, inventory: bool) -> Unit:
    """Return the unit of a tower layer that runs after the layer whose output is read.

    Its graph lives as long as the tower's output.
    """
    architecture = job.architecture
    vision = architecture.vision if isinstance(architecture, Architecture) else None
    is_returned = vision is not None and gives_towers(job, vision)
    curve = passing_curve(block, setting, recompute, is_returned, inventory)
    tensors = idle_tensors(job, block, setting.adapter, trained=setting.trained)
    return Unit(kind="idle", name="idle layer", tensors=tensors, first_curve=curve, later_curve=curve)


@lru_cache(maxsize=512)
def passing_curve(block: Block, setting: Setting, recompute: str, is_returned: bool, inventory: bool) -> Curve:
    """Replay a layer whose output nothing reads, such as a tower's last ones, and return its memory curve.

    The curve's ``extra_output_bytes`` are its graph and its output, to which ``last_hidden_state`` refers.
    ``is_returned``: the model's output has it, so that the copies of weights in its graph outlive autocast's own.
    """
    tape = Tape(autocast=setting.autocast_dtype, inventory=inventory)
    ctx = Context(tape, setting)
    shape, dtype = (Dim(setting.sequence, "P"), Dim(setting.hidden, "v")), stream_dtype(setting)
    x = Value(tape.new(shape, dtype, "block input"), shape, dtype, Leaf() if setting.needs_input_gradient else None)
    forward, is_checkpointed = layers_of(setting.style).recomputing(block, recompute)
    y = checkpointed(ctx, forward, x) if is_checkpointed else forward(ctx, x)
    features = rounded_bytes(shape, dtype)
    highest, held_bytes = peak_of(tape), tape.live - features  # the features count as the projector's input
    del y
    x.storage = None
    ctx.extra_outputs.clear()
    has_graph = setting.needs_input_gradient or setting.trained or setting.adapter is not None
    cast_bytes = 0 if is_returned and has_graph else tape.live
    tape.casts.clear()
    return NOTHING_RUNS._replace(
        forward_peak=highest,
        autocast_cache_bytes=cast_bytes,
        extra_output_bytes=held_bytes - cast_bytes,
        input_bytes=features,  # live while the layer is gathered
    )


def tensors_of(job: TrainingJob, architecture: Architecture, part: Part) -> Iterator[tuple[LocalTensor, ...]]:
    """Yield the parameter tensors of one pipeline rank, unit by unit. Equal layers yield the same tuple."""
    architecture, placement, frozen = (
        as_framework_builds(job, architecture),
        placement_of(job),
        frozen_layers(job.freeze),
    )
    if part.has_embedding:
        yield embedding_unit_tensors(job, architecture, placement)
    layers = architecture.layers()
    tensors_by_layer: dict[tuple[int, bool], tuple[LocalTensor, ...]] = {}
    for index in range(part.first_layer, part.end_layer):
        is_frozen = index in frozen
        kind = (id(layers[index]), is_frozen)
        if kind not in tensors_by_layer:
            tensors_by_layer[kind] = layer_tensors(
                job, layers[index], placement._replace(trained=False) if is_frozen else placement
            )
        yield tensors_by_layer[kind]
    if part.has_embedding and (
        architecture.vision is not None or architecture.others or architecture.encoder is not None
    ):
        yield from (as_stored(job, tensors) for tensors in side_tensors(job, architecture))
    if part.has_head:
        yield head_unit_tensors(job, architecture, placement, embeds=part.has_embedding)


def model_tensors(job: TrainingJob, architecture: Architecture) -> Iterator[tuple[LocalTensor, ...]]:
    """The tensors of a whole model that is on one pipeline rank, unit by unit."""
    yield from tensors_of(
        job, architecture, Part(first_layer=0, end_layer=architecture.num_layers, has_embedding=True, has_head=True)
    )


def trainable_parameters(job: TrainingJob, architecture: Architecture) -> tuple[int, int]:
    """Return the number of trained parameters of the whole model, and the number of adapter parameters added to it."""
    unsharded_job = job._replace(
        layout=job.layout._replace(tensor=1, sequence=False, pipeline=1, expert=1, expert_tensor=1)
    )
    trained = added = 0
    counts_by_unit: dict[int, tuple[int, int]] = {}
    units = list(model_tensors(unsharded_job, architecture))  # layers that are alike share their tensors
    for tensors in units:
        if id(tensors) not in counts_by_unit:
            counts_by_unit[id(tensors)] = (
                sum([t.numel for t in tensors if t.trained]),
                sum([t.numel for t in tensors if ".lora_" in t.name]),
            )
        unit_counts = counts_by_unit[id(tensors)]
        trained, added = trained + unit_counts[0], added + unit_counts[1]
    return trained, added
