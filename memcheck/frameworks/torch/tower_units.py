"""The units of a vision tower: stem, layers, and projector with the scatter of image tokens into the looked-up rows.

transformers 5.24 has the tower's last rows and image tokens in the model's output (modeling_outputs.py,
``MultimodalCausalLMOutputWithPast.image_outputs``). The model's forward refers to them until the loss is there, and the
training loop as long as it has the logits. Before 5.24 the output had the image tokens alone (``image_hidden_states``).
"""

from __future__ import annotations

from functools import lru_cache

from memcheck.accounts.ranks import Unit
from memcheck.autograd import Tape, Value
from memcheck.autograd.context import Context, Setting, elements, require_covered, touched, touched_by, whole
from memcheck.autograd.curve import Curve, closed, high, replay
from memcheck.autograd.operator import cast
from memcheck.autograd.tensor import Dim, Leaf, rounded_bytes
from memcheck.families.tower import tower_forward
from memcheck.families.towers.forward_parts import add_image_tokens, index_put, masked_scatter
from memcheck.frameworks.torch.data_parallel import casts_inputs
from memcheck.frameworks.torch.image_cross_attention import between_unit, reading_of, reading_unit
from memcheck.frameworks.torch.rank_tensors import as_block, is_hooked, recompute_mode, stream_dtype, widened_tower
from memcheck.frameworks.torch.tower_tensors import (
    closing_norms,
    ending_tensors,
    gives_towers,
    idle_units,
    layers_of_tower,
    part_setting,
    part_tensors,
    passing_unit,
    reaches,
    shrunk,
    split_pooling,
    stem_of_tower,
)
from memcheck.frameworks.torch.units import block_unit
from memcheck.job.images import Pictures, pictures_of
from memcheck.job.types import Checkpointing, TrainingJob
from memcheck.models.types import Architecture, ParameterTensor
from memcheck.models.vision import Vision
from memcheck.record import Record


def stem_unit(
    job: TrainingJob, vision: Vision, setting: Setting, *, has_graph: bool, is_leaf: bool, adds: bool, inventory: bool
) -> Unit:
    """Return the unit of a vision tower's stem: patch embedding, positions and norms, which run before its layers.

    ``has_graph``, ``is_leaf``: see :func:`stem_curve`. ``adds``: some micro-batch adds to existing gradients.
    """
    block = as_block(vision.stem)
    expected_numel = elements(block)

    def run(ctx: Context) -> None:
        tower_forward(vision.kind).stem(ctx, vision, False)

    require_covered(touched(run, whole(setting)), expected_numel, "the vision tower's stem", job.framework.name)
    first_curve = stem_curve(vision, setting, has_graph, is_leaf, inventory)
    later_curve = (
        stem_curve(vision, setting.for_later_micro_batches(), has_graph, is_leaf, inventory) if adds else first_curve
    )
    tensors = part_tensors(block, setting, "vision")
    return Unit(kind="stem", name="patch embedding", tensors=tensors, first_curve=first_curve, later_curve=later_curve)


@lru_cache(maxsize=512)
def stem_curve(vision: Vision, setting: Setting, has_graph: bool, is_leaf: bool, inventory: bool) -> Curve:
    """Replay the stem and return its memory curve, without its output, which the first layer counts as its input.

    ``has_graph``: some layer has a graph, which keeps the position tables that all layers read. ``is_leaf``: the output
    requires a gradient as a leaf. Its AccumulateGrad keeps it and its gradient until the backward is over.
    """
    tape = Tape(autocast=setting.autocast_dtype, inventory=inventory)
    ctx = Context(tape, setting)
    if setting.casts_batch_features:  # an argument of the root's forward: it lives as long as autocast's copies do
        pixels_shape = (setting.sequence - vision.classes * setting.images, vision.channels)
        ctx.pixel_values = tape.value(pixels_shape, setting.param_dtype, "pixel_values, cast")
        held_pixels = Value(ctx.pixel_values.storage, pixels_shape, setting.param_dtype)
        tape.casts[id(held_pixels)] = held_pixels
    y, tables = tower_forward(vision.kind).stem(ctx, vision, is_leaf)
    leaf_bytes = rounded_bytes(tables[0].shape, tables[0].dtype) if is_leaf else 0
    ctx.pixel_values = None
    tables = [t for t in tables if t.storage is not y.storage]  # the first layer's input counts as its own
    forward_high = high(tape)
    if not has_graph:  # variables of the tower's forward
        ctx.extra_outputs += tables
        tables.clear()
    return closed(tape, ctx, y, forward_high)._replace(until_backward_ends=2 * leaf_bytes)  # the leaf and its gradient


def kept_unit(job: TrainingJob, vision: Vision, unit: Unit) -> Unit:
    """Return an idle layer, with its graph kept alive if the training loop's variable of the output refers to it."""
    if not (job.loss.keep_logits and gives_towers(job, vision)):
        return unit
    first_curve, later_curve = (
        curve._replace(until_backward_ends=curve.until_backward_ends + curve.extra_output_bytes)
        for curve in (unit.first_curve, unit.later_curve)
    )
    return unit._replace(first_curve=first_curve, later_curve=later_curve)


def given(values: list[Value]) -> tuple[list[Value], int]:
    """Return new references to the values, one per storage, and the bytes of these storages."""
    values_by_storage = {v.storage.key: Value(v.storage, v.shape, v.dtype) for v in values if v.storage is not None}
    return list(values_by_storage.values()), sum(
        v.storage.bytes for v in values_by_storage.values() if v.storage is not None
    )


RECOMPUTED = "vit_gradient_checkpointing"
"""ms-swift's option: whether the tower's layers are recomputed with the language model's."""


class SideUnits(Record):
    """The units of a vision tower, and whether the language model's first layer needs a gradient of its input."""

    runs: tuple[tuple[Unit, int, int], ...]
    """Units in forward order, each with the number of equal units, and the index of their first layer."""
    input_grad: bool
    """Whether the input of the language model's first layer needs a gradient."""


def _is_hooked_by_swift(job: TrainingJob, vision: Vision) -> bool:
    """Say whether ms-swift makes the tower's patches require a gradient.

    ms-swift names the patches of more towers for the hook (swift/model/patcher.py, patch_get_input_embeddings), and can
    leave a tower out of recompute (``--vit_gradient_checkpointing false``). A frozen one keeps its graph then: the hook
    on its patches was registered by the whole model, and the tower's ``disable_input_require_grads``
    (swift/trainers/mixin.py, ``_prepare_gradient_checkpointing``) removes its own hooks alone, of which it has none.
    """
    return tower_forward(vision.kind).hooked_by_swift and job.option(RECOMPUTED) is not None


def side_units(
    job: TrainingJob,
    architecture: Architecture,
    vision: Vision,
    base: Setting,
    *,
    rows_grad: bool,
    adds: bool,
    inventory: bool,
) -> SideUnits:
    """Return the units of a vision tower in forward order: stem, layers, mergers of earlier rows, projector.

    ``rows_grad``: the looked-up text rows need a gradient. A layer has a graph if it or anything before it is trained.

    """
    pictures = pictures_of(job, vision)
    tower, projector = part_setting(job, base, "vision"), part_setting(job, base, "projector")
    # parts of the tower that run or exist, and whose output nothing reads
    runs, pooled = split_pooling(idle_units(job, architecture, base, pictures), vision, pictures, base)
    if pictures.rows == 0:
        return SideUnits(tuple(runs), rows_grad)
    stream = base.autocast_dtype if vision.narrow else widened_tower(vision, base)
    is_recomputed = vision.checkpointed and bool(job.option(RECOMPUTED, default=True))
    tower = tower._replace(
        hidden=vision.hidden,
        batch=1,
        sequence=pictures.rows,
        images=pictures.pictures,
        residual_dtype=stream,
        rows_per_image=pictures.sizes,
        casts_batch_features=casts_inputs(job, "fp32" if vision.cast else job.recipe.params),
        tower_checkpointed=is_recomputed and job.checkpointing.mode != "none",
    )
    hooked = is_hooked(job, architecture) and (vision.hooked or _is_hooked_by_swift(job, vision))
    # the stem: patch embedding and positions
    stem_setting, layer_setting = _flattened(job, vision, tower)
    has_graph = stem_setting.trained or layer_setting.trained or _adapted(vision, tower) or hooked
    is_leaf = hooked and not (stem_setting.trained or reaches(tower, as_block(vision.stem)))
    stem = stem_unit(job, vision, stem_setting, has_graph=has_graph, is_leaf=is_leaf, adds=adds, inventory=inventory)
    index, deepstack_layers, stem_position = 0, list(vision.deepstack), len(runs)
    runs.append((stem, 1, 0))
    input_needs_grad = stem_setting.trained or hooked or reaches(tower, as_block(vision.stem))
    # the layers, equal consecutive ones as one unit
    for block_kind, (block, count_of_block) in enumerate(vision.blocks):
        layers_left = count_of_block
        if block_kind == 1 and vision.between:
            between_setting = tower._replace(needs_input_gradient=input_needs_grad)
            runs.append((between_unit(job, vision, between_setting, adds=adds, inventory=inventory), 1, 0))
            tower, layer_setting = shrunk(vision, tower), shrunk(vision, layer_setting)
        while layers_left:
            setting = layer_setting._replace(needs_input_gradient=input_needs_grad)
            mode = recompute_mode(job, index) if is_recomputed else "none"
            unit = block_unit(job, block, setting, mode, adds, inventory)
            output_needs_grad = input_needs_grad or layer_setting.trained or reaches(layer_setting, block)
            is_first_without_graph = index == 0 and not output_needs_grad and not tower_forward(vision.kind).loops
            count = 1 if output_needs_grad != input_needs_grad or is_first_without_graph else layers_left
            if deepstack_layers and deepstack_layers[0] < index + count:
                count = deepstack_layers[0] + 1 - index  # a merger runs after this layer (Qwen3-VL's deepstack)
            unit = unit._replace(kind="tower", name=f"vision layer {index}")
            unit = _entered(unit) if is_first_without_graph else unit
            runs.append((unit if block_kind or output_needs_grad else _listed(vision, unit), count, index))
            input_needs_grad, index, layers_left = output_needs_grad, index + count, layers_left - count
            if deepstack_layers and deepstack_layers[0] == index - 1:
                number = len(vision.deepstack) - len(deepstack_layers)
                merger_setting = projector._replace(
                    hidden=vision.hidden, batch=1, sequence=tower.sequence, images=pictures.pictures,
                    needs_input_gradient=input_needs_grad, residual_dtype=stream, external_input=input_needs_grad,
                )  # fmt: skip
                runs.append((_merger_unit(job, vision, merger_setting, number, adds=adds, inventory=inventory), 1, 0))
                deepstack_layers.pop(0)
    # the projector, or what the text's cross-attention reads
    runs += pooled
    runs += _passing(job, vision, layer_setting._replace(needs_input_gradient=input_needs_grad), index, inventory)
    projector = _ending(vision, tower, projector)._replace(
        hidden=vision.hidden,
        batch=1,
        sequence=tower.sequence,
        images=pictures.pictures,
        image_tokens=pictures.tokens,
        needs_input_gradient=input_needs_grad,
        residual_dtype=stream,
        tower_checkpointed=tower.tower_checkpointed,
    )
    trained = projector.trained or reaches(projector, as_block(vision.projector))
    if vision.gathered and input_needs_grad:
        runs[stem_position] = (_taking(stem, waiting_rows(vision, projector)), 1, 0)
    if vision.crosses:
        reading = reading_of(base, stream_dtype(base), recomputed=job.checkpointing.mode != "none")
        waiting_gradients = waiting_rows(vision, projector) if input_needs_grad else 0
        last = reading_unit(job, vision, projector, reading, waiting_gradients, adds=adds, inventory=inventory)
        return SideUnits((*runs, (last, 1, 0)), input_needs_grad or trained)
    end = _projector_unit(
        job, architecture, vision, projector, pictures, rows_grad=rows_grad, adds=adds, inventory=inventory
    )
    return SideUnits((*runs, (end, 1, 0)), rows_grad or input_needs_grad or trained)


def _flattened(job: TrainingJob, vision: Vision, tower: Setting) -> tuple[Setting, Setting]:
    """Return the settings of stem and layers, which differ if FSDP1 flattens them with other frozen modules."""
    if not any(word.startswith("vision:") for word in job.freeze):
        return tower, tower
    return stem_of_tower(job, tower, vision), layers_of_tower(job, tower)


def _entered(unit: Unit) -> Unit:
    """Return the first layer of a tower without a graph: a variable of the caller keeps its input alive."""
    first_curve = unit.first_curve._replace(extra_output_bytes=unit.first_curve.freed_input_bytes)
    return unit._replace(first_curve=first_curve, later_curve=first_curve)


def _listed(vision: Vision, unit: Unit) -> Unit:
    """Return a layer without a graph; its output may be in a list until the projector has run."""
    if not (vision.crosses or vision.placement == "added"):
        return unit
    first_curve = unit.first_curve._replace(extra_output_bytes=unit.first_curve.freed_input_bytes)
    return unit._replace(kind="gathered", first_curve=first_curve, later_curve=first_curve)


def waiting_rows(vision: Vision, setting: Setting) -> int:
    """Return the bytes of gradients of earlier layers' outputs, which wait from the projector's backward to theirs."""
    return len(vision.gathered) * rounded_bytes((setting.sequence, vision.hidden), stream_dtype(setting))


def _taking(unit: Unit, waits: int) -> Unit:
    """Return a unit whose backward takes over ``waits`` bytes of gradients that wait for it."""
    first_curve, later_curve = (
        curve._replace(taken_gradient_bytes=curve.taken_gradient_bytes + waits)
        for curve in (unit.first_curve, unit.later_curve)
    )
    return unit._replace(first_curve=first_curve, later_curve=later_curve)


def _passing(
    job: TrainingJob, vision: Vision, setting: Setting, first: int, inventory: bool
) -> list[tuple[Unit, int, int]]:
    """Return the units of layers that run after the features are taken. ``first``: the number of the first layer."""
    units = []
    for block, count in vision.idle:
        unit = kept_unit(job, vision, passing_unit(job, block, setting, recompute_mode(job, first), inventory))
        units.append(
            (unit._replace(kind="gathered") if vision.placement == "put" else unit, count, 0)
        )  # "gathered": to the projector
        first += count
    return units


def _ending(vision: Vision, tower: Setting, projector: Setting) -> Setting:
    """Return the projector's setting with the right frozen modules for the tower's last norm.

    The norm runs in the projector's unit, and is trained or frozen with the tower.
    """
    if tower.trained == projector.trained:
        return projector
    norm_names = tuple(t.name.removesuffix(".weight") for t in closing_norms(vision) if t.name.endswith(".weight"))
    other_names = tuple(
        t.name.removesuffix(".weight") for t in vision.closing + vision.projector if t.name not in norm_names
    )
    if projector.trained:
        return projector._replace(frozen_modules=norm_names)
    return projector._replace(
        trained=bool(norm_names), frozen_modules=tuple(name for name in other_names if not _under(name, norm_names))
    )


def _under(name: str, modules: tuple[str, ...]) -> bool:
    """Return whether a module is one of ``modules`` or inside one of them."""
    return any(name == m or name.startswith(m + ".") for m in modules)


def _adapted(vision: Vision, setting: Setting) -> bool:
    """Return whether some linear layer of the tower's layers or stem has an adapter."""
    return any(reaches(setting, block) for block, _ in vision.blocks) or reaches(setting, as_block(vision.stem))


def mergers(vision: Vision) -> list[tuple[ParameterTensor, ...]]:
    """Return the tensors of each patch merger: the last one first, then DeepStack's for outputs of earlier layers."""
    tensors_per_merger = len(vision.projector) // (len(vision.deepstack) + 1)
    if not tensors_per_merger:
        return [()]
    return [vision.projector[i : i + tensors_per_merger] for i in range(0, len(vision.projector), tensors_per_merger)]


def _merger_unit(
    job: TrainingJob, vision: Vision, setting: Setting, number: int, *, adds: bool, inventory: bool
) -> Unit:
    """Return the unit of a DeepStack merger, whose image tokens wait in a list for the layers of text.

    ``number``: which of the mergers of earlier layers' outputs.
    """
    tensors = mergers(vision)[number + 1]
    block, merge = as_block(tensors), tower_forward(vision.kind).merged
    touched_tensors = touched_by(lambda ctx, x: merge(ctx, vision, tensors, x), whole(setting))
    require_covered(touched_tensors, elements(block), "a merger of earlier rows", job.framework.name)
    first_curve = merger_curve(vision, setting, number, inventory)
    later_curve = merger_curve(vision, setting.for_later_micro_batches(), number, inventory) if adds else first_curve
    tensors_here = part_tensors(block, setting, "projector")
    return Unit(
        kind="merger", name=f"merger {number}", tensors=tensors_here, first_curve=first_curve, later_curve=later_curve
    )


@lru_cache(maxsize=512)
def merger_curve(vision: Vision, setting: Setting, number: int, inventory: bool) -> Curve:
    """Replay a DeepStack merger and return its memory curve.

    Its input is also the next layer's, which keeps it if it has a graph. Its gradient arrives with the last merger's.
    """
    tensors = mergers(vision)[number + 1]

    def run(ctx: Context, x: Value) -> Value:
        y = tower_forward(vision.kind).merged(ctx, vision, tensors, x)
        ctx.extra_outputs.append(Value(y.storage, y.shape, y.dtype))
        return y

    shape, dtype = (Dim(setting.sequence, "P"), Dim(setting.hidden, "v")), stream_dtype(setting)
    curve = replay(run, setting, shape, dtype, inventory=inventory)
    if not setting.external_input:
        return curve._replace(freed_input_bytes=0, taken_gradient_bytes=curve.output_gradient_bytes)
    rows = rounded_bytes(shape, dtype)
    components = [("activations", rows), *(item for item in curve.forward_peak.components if item[0] != "activations")]
    components[0] = ("activations", rows + dict(curve.forward_peak.components).get("activations", 0))
    forward = curve.forward_peak._replace(bytes=curve.forward_peak.bytes + rows, components=tuple(components))
    return curve._replace(forward_peak=forward, taken_gradient_bytes=curve.output_gradient_bytes)


def _projector_unit(
    job: TrainingJob,
    architecture: Architecture,
    vision: Vision,
    setting: Setting,
    pictures: Pictures,
    *,
    rows_grad: bool,
    adds: bool,
    inventory: bool,
) -> Unit:
    """Return the unit of the projector and of the scatter of image tokens into the embedded text.

    ``pictures``: images of a micro-batch. ``rows_grad``: the embedded text needs a gradient. ``adds``: some micro-batch
    adds to existing gradients.
    """
    projector_vision = vision._replace(projector=mergers(vision)[0])
    block = as_block(projector_vision.closing + projector_vision.projector)
    project = tower_forward(vision.kind).project
    touched_tensors = touched_by(lambda ctx, x: project(ctx, projector_vision, x), whole(setting))
    require_covered(touched_tensors, elements(block), "the projector", job.framework.name)
    shape = (job.rows * job.sequence_length, architecture.hidden_size)
    end = _Ending(
        shape=shape,
        tokens=pictures.tokens,
        rows_grad=rows_grad,
        gives_out=vision.gives_out and job.loss.keep_logits and not gives_towers(job, vision),
        gives_all=gives_towers(job, vision) and job.loss.keep_logits,
        scaled=architecture.embedding_scale == "model",
    )
    first = _with_tower_gradients(vision, projector_curve(projector_vision, setting, end, inventory), setting, end)
    later = first
    if adds:
        later = projector_curve(projector_vision, setting.for_later_micro_batches(), end, inventory)
        later = _with_tower_gradients(vision, later, setting, end)
    tensors = ending_tensors(vision, projector_vision.projector, setting)
    return Unit(kind="projector", name="projector and scatter", tensors=tensors, first_curve=first, later_curve=later)


def _with_tower_gradients(vision: Vision, curve: Curve, setting: Setting, end: _Ending) -> Curve:
    """Return the projector's memory curve with image tokens of DeepStack mergers, and with gradients for tower layers.

    These gradients are computed in the projector's backward, and stay allocated until the tower layers' backward.
    ``end``: shapes of image tokens and text.
    """
    if vision.closing or vision.placement == "put":  # a last norm: the tower returns its output, and its input is freed
        curve = curve._replace(freed_input_bytes=0)
    _, text_width = end.shape
    image_tokens = (end.tokens, text_width)
    if end.gives_out:  # in the model's output, to the end of the backward
        until_backward_ends = curve.until_backward_ends + rounded_bytes(image_tokens, setting.param_dtype)
        curve = curve._replace(until_backward_ends=until_backward_ends)
    if vision.gathered and setting.needs_input_gradient:
        curve = curve._replace(left_gradient_bytes=waiting_rows(vision, setting))
    if not vision.deepstack:
        return curve
    merger_dtype = setting.autocast_dtype or setting.param_dtype
    merger_tokens = len(vision.deepstack) * rounded_bytes(image_tokens, merger_dtype)
    gradients_wait = setting.needs_input_gradient or setting.trained or reaches(setting, as_block(mergers(vision)[1]))
    return curve._replace(
        extra_output_bytes=curve.extra_output_bytes + merger_tokens,
        left_gradient_bytes=merger_tokens if gradients_wait else 0,
    )


class _Ending(Record):
    """What the scatter of image tokens into text rows depends on, in addition to the tokens."""

    shape: tuple[int, int]
    """Rows and width of what was looked up."""
    tokens: int
    rows_grad: bool
    """The looked-up rows want a gradient."""
    gives_out: bool
    """The image tokens live in the model's output until the step is over."""
    gives_all: bool
    """All that the tower and the projector have returned does."""
    scaled: bool
    """The language model multiplies the rows: what it was given has a variable outside until it has returned."""


@lru_cache(maxsize=512)
def projector_curve(vision: Vision, setting: Setting, end: _Ending, inventory: bool) -> Curve:
    """Replay the projector and the scatter of its image tokens into the looked-up text rows; return its memory curve.

    The input is [patches, tower width], the output [rows * sequence, hidden]. Variables of the model's forward, and the
    model's output if it has image tokens, keep tensors alive after the scatter.
    """
    stream = setting.param_dtype
    shape = (Dim(setting.sequence, "P"), Dim(setting.hidden, "v"))
    held_outputs: list[Value] = []
    returned_bytes: list[int] = []

    def run(ctx: Context, x: Value) -> Value:
        """Run the projector, and put its image tokens into the text embeddings."""
        features = tower_forward(vision.kind).project(ctx, vision, x)
        features = Value(features.storage, (end.tokens, end.shape[1]), features.dtype, features.origin)
        if features.dtype != stream:  # `image_features.to(inputs_embeds.dtype)`, which has a variable, too
            features = cast(ctx.tape, features, stream)
            if vision.placement != "put":
                ctx.extra_outputs.append(Value(features.storage, features.shape, features.dtype))
        if end.gives_out:
            held_outputs.append(features)
        if end.gives_all:
            returned_values, size = given([*ctx.extra_outputs, *([] if vision.closing else [x])])
            held_outputs.extend(returned_values)
            returned_bytes.append(size)
        rows = Value(None, end.shape, stream, Leaf() if end.rows_grad else None)
        if vision.placement == "added":
            features = add_image_tokens(ctx, rows, features)
        scatter = index_put if vision.placement == "put" else masked_scatter
        rows = scatter(ctx, rows, features)
        if end.scaled:
            ctx.extra_outputs.append(Value(rows.storage, rows.shape, rows.dtype))
        return rows

    curve = replay(run, setting, shape, stream_dtype(setting), inventory=inventory)
    return curve._replace(until_backward_ends=curve.until_backward_ends + sum(returned_bytes[:1]))


EVERY_PART = ("vision", "projector", "language")


def seen_again(job: TrainingJob, architecture: Architecture, setting: Setting) -> tuple[int, int, int]:
    """Return three byte counts of a vision tower in a forward pass without gradients, such as a reference model's.

    First the tower's peak, including the embedded text. Second what the model's variables keep alive while the text
    layers run. Third the image tokens in the model's output, which are included in the second. All are 0 without
    images.
    """
    vision = architecture.vision
    if vision is None or not pictures_of(job, vision).rows:
        return 0, 0, 0
    frozen = job._replace(
        architecture=architecture,
        method="full",
        lora=None,
        freeze=EVERY_PART,
        checkpointing=Checkpointing(),
        auxiliary_models=(),
    )
    side = side_units(frozen, architecture, vision, setting, rows_grad=False, adds=False, inventory=False)
    held_bytes = rounded_bytes((job.rows * job.sequence_length, architecture.hidden_size), setting.param_dtype)
    highest = kept_bytes = 0
    for unit, count, _ in side.runs:
        curve = unit.first_curve
        highest = max(highest, held_bytes + curve.forward_peak.bytes)
        held_bytes += curve.extra_output_bytes * count
        if unit.kind == "merger":
            kept_bytes += curve.extra_output_bytes * count
        elif unit.kind == "projector":
            kept_bytes += curve.extra_output_bytes + curve.freed_input_bytes
    tokens = rounded_bytes((pictures_of(job, vision).tokens, architecture.hidden_size), setting.param_dtype)
    return highest, kept_bytes, tokens if vision.gives_out else 0
