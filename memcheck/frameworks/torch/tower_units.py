"""The units of a vision tower: stem, layers, and projector with the scatter of image tokens into the looked-up rows.

transformers 5.24 has the tower's last rows and image tokens in the model's output (modeling_outputs.py,
``MultimodalCausalLMOutputWithPast.image_outputs``). The model's forward refers to them until the loss is there, and the
training loop as long as it has the logits. Before 5.24 the output had the image tokens alone (``image_hidden_states``).
"""

from __future__ import annotations

from functools import lru_cache

from memcheck.accounts.ranks import Run, Unit, UnitRuns
from memcheck.autograd import Tape, Value
from memcheck.autograd.context import Context, Setting, elements, require_covered, touched, touched_by, whole
from memcheck.autograd.curve import Curve, curve_without_input, peak_of, replay
from memcheck.autograd.operator import cast
from memcheck.autograd.tensor import Dim, Leaf, Storage, rounded_bytes
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
from memcheck.models.types import Architecture, Block, ParameterTensor
from memcheck.models.vision import Vision
from memcheck.record import Record


def stem_unit(
    job: TrainingJob, vision: Vision, setting: Setting, *, has_graph: bool, is_leaf: bool, adds: bool, inventory: bool
) -> Unit:
    """Return the unit of a vision tower's stem: patch embedding, positions and norms, which run before its layers.

    ``has_graph``, ``is_leaf``: see :func:`stem_curve`. ``adds``: some micro-batch adds to existing gradients.
    """
    block = as_block(vision.stem_tensors)
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
        pixels_shape = (setting.sequence - vision.class_tokens_per_tile * setting.images, vision.values_per_patch)
        ctx.pixel_values = tape.value(pixels_shape, setting.param_dtype, "pixel_values, cast")
        held_pixels = Value(ctx.pixel_values.storage, pixels_shape, setting.param_dtype)
        tape.casts[id(held_pixels)] = held_pixels
    y, tables = tower_forward(vision.kind).stem(ctx, vision, is_leaf)
    leaf_bytes = rounded_bytes(tables[0].shape, tables[0].dtype) if is_leaf else 0
    ctx.pixel_values = None
    tables = [t for t in tables if t.storage is not y.storage]  # the first layer's input counts as its own
    forward_high = peak_of(tape)
    if not has_graph:  # variables of the tower's forward
        ctx.extra_outputs += tables
        tables.clear()
    leaf_and_gradient_bytes = 2 * leaf_bytes
    return curve_without_input(tape, ctx, y, forward_high)._replace(until_backward_ends=leaf_and_gradient_bytes)


def kept_unit(job: TrainingJob, vision: Vision, unit: Unit) -> Unit:
    """Return an idle layer, with its graph kept alive if the training loop's variable of the output refers to it."""
    if not (job.loss.keep_logits and gives_towers(job, vision)):
        return unit
    first_curve, later_curve = (
        curve._replace(until_backward_ends=curve.until_backward_ends + curve.extra_output_bytes)
        for curve in (unit.first_curve, unit.later_curve)
    )
    return unit._replace(first_curve=first_curve, later_curve=later_curve)


def storages_of(values: list[Value]) -> list[Storage]:
    """Return the storages of some values, each once. They are live as long as the list is."""
    return list({v.storage.key: v.storage for v in values if v.storage is not None}.values())


RECOMPUTED = "vit_gradient_checkpointing"
"""ms-swift's option: whether the tower's layers are recomputed with the language model's."""


def side_units(
    job: TrainingJob,
    architecture: Architecture,
    vision: Vision,
    base: Setting,
    *,
    rows_grad: bool,
    adds: bool,
    inventory: bool,
) -> UnitRuns:
    """Return the units of a vision tower in forward order: stem, layers, mergers of earlier layers' rows, projector.

    ``base``: the setting of the language model. ``rows_grad``: the looked-up text rows need a gradient. ``adds``: some
    micro-batch adds to existing gradients.
    """
    pictures = pictures_of(job, vision)
    idle, pooling = split_pooling(idle_units(job, architecture, base, pictures), vision, pictures, base)
    if pictures.patches == 0:
        return UnitRuns(tuple(idle), rows_grad)
    tower = _TowerUnits(job, architecture, vision, base, pictures, adds=adds, inventory=inventory)
    stem, layers = tower.stem(), tower.layers()
    unread_layers = tower.unread_layers()
    projector = tower.projector_setting()
    trained = projector.trained or reaches(projector, as_block(vision.projector_tensors))
    output_needs_grad = tower.input_needs_grad or trained
    waiting_gradients = 0
    if vision.feature_layers and tower.input_needs_grad:
        waiting_gradients = waiting_rows(vision, projector)
        stem = _taking(stem, waiting_gradients)
    runs = (*idle, Run(stem, 1), *layers, *pooling, *unread_layers)
    if vision.text_layers_that_read_images:  # layers of text read the image tokens by cross attention
        reading = reading_of(base, stream_dtype(base), recomputed=job.checkpointing.mode != "none")
        last = reading_unit(job, vision, projector, reading, waiting_gradients, adds=adds, inventory=inventory)
        return UnitRuns((*runs, Run(last, 1)), output_needs_grad)
    end = _projector_unit(
        job, architecture, vision, projector, pictures, rows_grad=rows_grad, adds=adds, inventory=inventory
    )
    return UnitRuns((*runs, Run(end, 1)), rows_grad or output_needs_grad)


class _TowerUnits:
    """Builds a tower's units in forward order: first :meth:`stem`, then :meth:`layers`, then :meth:`unread_layers`.

    ``input_needs_grad``: whether the input of the next module needs a gradient, because something before is trained.
    """

    def __init__(
        self,
        job: TrainingJob,
        architecture: Architecture,
        vision: Vision,
        base: Setting,
        pictures: Pictures,
        *,
        adds: bool,
        inventory: bool,
    ) -> None:
        """Derive the settings of stem and layers from ``base``, the setting of the language model."""
        self.job, self.vision = job, vision
        self.adds, self.inventory = adds, inventory
        self.is_recomputed = vision.checkpointed and bool(job.option(RECOMPUTED, default=True))
        self.tower = part_setting(job, base, "vision")._replace(
            hidden=vision.hidden,
            batch=1,
            sequence=pictures.patches,
            images=pictures.pictures,
            rows_per_image=pictures.patches_by_picture,
            residual_dtype=base.autocast_dtype if vision.residual_in_autocast_dtype else widened_tower(vision, base),
            casts_batch_features=casts_inputs(job, "fp32" if vision.pixels_arrive_in_fp32 else job.recipe.params),
            tower_checkpointed=self.is_recomputed and job.checkpointing.mode != "none",
        )
        self.stem_setting, self.layer_setting = _flattened(job, vision, self.tower)
        self.projector = part_setting(job, base, "projector")._replace(
            hidden=vision.hidden, batch=1, images=pictures.pictures, residual_dtype=self.tower.residual_dtype
        )
        self.image_tokens = pictures.image_tokens
        self.is_hooked = is_hooked(job, architecture) and (
            vision.embedding_can_be_hooked or _is_hooked_by_swift(job, vision)
        )
        self.input_needs_grad = False

    def stem(self) -> Unit:
        """Return the unit of patch embedding and positions."""
        is_trained = self.stem_setting.trained or reaches(self.tower, as_block(self.vision.stem_tensors))
        trains_tower = self.stem_setting.trained or self.layer_setting.trained or _adapted(self.vision, self.tower)
        self.input_needs_grad = is_trained or self.is_hooked
        return stem_unit(
            self.job,
            self.vision,
            self.stem_setting,
            has_graph=trains_tower or self.is_hooked,
            is_leaf=self.is_hooked and not is_trained,
            adds=self.adds,
            inventory=self.inventory,
        )

    def layers(self) -> list[Run]:
        """Return the layers, with a module between local and global ones, and DeepStack's mergers, where they run."""
        vision, runs, first = self.vision, list[Run](), 0
        for kind, (block, count) in enumerate(vision.blocks):
            if kind == 1 and vision.middle:
                runs.append(self._between())
            end = first + count
            while first < end:
                run = self._equal_layers(block, first, end, is_global=kind > 0)
                runs.append(run)
                first += run.times
                if first - 1 in vision.deepstack_layers:
                    runs.append(self._merger(vision.deepstack_layers.index(first - 1)))
        return runs

    def _between(self) -> Run:
        """Return the module between local and global layers; the layers after it have fewer rows."""
        setting = self.tower._replace(needs_input_gradient=self.input_needs_grad)
        self.tower = shrunk(self.vision, self.tower)
        self.layer_setting = shrunk(self.vision, self.layer_setting)
        return Run(between_unit(self.job, self.vision, setting, adds=self.adds, inventory=self.inventory), 1)

    def _equal_layers(self, block: Block, first: int, end: int, *, is_global: bool) -> Run:
        """Return the run of equal layers from ``first`` on, which all have the same ``block`` up to ``end``.

        A layer is a run of its own if its output needs a gradient and its input does not, or if it is a tower's first
        layer without a graph. A run ends after a layer whose rows a DeepStack merger reads.
        """
        setting = self.layer_setting._replace(needs_input_gradient=self.input_needs_grad)
        mode = recompute_mode(self.job, first) if self.is_recomputed else "none"
        unit = block_unit(self.job, block, setting, mode, self.adds, self.inventory)
        unit = unit._replace(kind="tower", name=f"vision layer {first}")
        output_needs_grad = self.input_needs_grad or setting.trained or reaches(setting, block)
        is_first_without_graph = (
            first == 0 and not output_needs_grad and not tower_forward(self.vision.kind).runs_layers_itself
        )
        if output_needs_grad != self.input_needs_grad or is_first_without_graph:
            end = first + 1
        end = min([end, *(layer + 1 for layer in self.vision.deepstack_layers if layer >= first)])
        if is_first_without_graph:
            unit = _entered(unit)
        if not is_global and not output_needs_grad:
            unit = _listed(self.vision, unit)
        self.input_needs_grad = output_needs_grad
        return Run(unit, end - first, first)

    def _merger(self, number: int) -> Run:
        """Return DeepStack merger ``number``, which reads the rows of the last layer so far (Qwen3-VL)."""
        setting = self.projector._replace(
            sequence=self.tower.sequence,
            needs_input_gradient=self.input_needs_grad,
            input_is_counted_elsewhere=self.input_needs_grad,
        )
        return Run(_merger_unit(self.job, self.vision, setting, number, adds=self.adds, inventory=self.inventory), 1)

    def unread_layers(self) -> list[Run]:
        """Return the layers that run after the one whose rows the projector reads."""
        vision = self.vision
        setting = self.layer_setting._replace(needs_input_gradient=self.input_needs_grad)
        runs, index = [], sum(count for _, count in vision.blocks)
        for block, count in vision.idle_blocks:
            mode = recompute_mode(self.job, index)
            unit = kept_unit(self.job, vision, passing_unit(self.job, block, setting, mode, self.inventory))
            if vision.placement == "put":  # a list keeps their rows until the projector has run
                unit = unit._replace(kind="gathered")
            runs.append(Run(unit, count))
            index += count
        return runs

    def projector_setting(self) -> Setting:
        """Return the setting of the projector, whose input are the rows of the last layer."""
        return _ending(self.vision, self.tower, self.projector)._replace(
            sequence=self.tower.sequence,
            image_tokens=self.image_tokens,
            needs_input_gradient=self.input_needs_grad,
            tower_checkpointed=self.tower.tower_checkpointed,
        )


def _is_hooked_by_swift(job: TrainingJob, vision: Vision) -> bool:
    """Say whether ms-swift makes the tower's patches require a gradient.

    ms-swift names the patches of more towers for the hook (swift/model/patcher.py, patch_get_input_embeddings), and can
    leave a tower out of recompute (``--vit_gradient_checkpointing false``). A frozen one keeps its graph then: the hook
    on its patches was registered by the whole model, and the tower's ``disable_input_require_grads``
    (swift/trainers/mixin.py, ``_prepare_gradient_checkpointing``) removes its own hooks alone, of which it has none.
    """
    return tower_forward(vision.kind).hooked_by_swift and job.option(RECOMPUTED) is not None


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
    if not (vision.text_layers_that_read_images or vision.placement == "added"):
        return unit
    first_curve = unit.first_curve._replace(extra_output_bytes=unit.first_curve.freed_input_bytes)
    return unit._replace(kind="gathered", first_curve=first_curve, later_curve=first_curve)


def waiting_rows(vision: Vision, setting: Setting) -> int:
    """Return the bytes of gradients of earlier layers' outputs, which wait from the projector's backward to theirs."""
    return len(vision.feature_layers) * rounded_bytes((setting.sequence, vision.hidden), stream_dtype(setting))


def _taking(unit: Unit, waits: int) -> Unit:
    """Return a unit whose backward takes over ``waits`` bytes of gradients that wait for it."""
    first_curve, later_curve = (
        curve._replace(gradient_bytes_of_later_units=curve.gradient_bytes_of_later_units + waits)
        for curve in (unit.first_curve, unit.later_curve)
    )
    return unit._replace(first_curve=first_curve, later_curve=later_curve)


def _ending(vision: Vision, tower: Setting, projector: Setting) -> Setting:
    """Return the projector's setting with the right frozen modules for the tower's last norm.

    The norm runs in the projector's unit, and is trained or frozen with the tower.
    """
    if tower.trained == projector.trained:
        return projector
    norm_names = tuple(t.name.removesuffix(".weight") for t in closing_norms(vision) if t.name.endswith(".weight"))
    other_names = tuple(
        t.name.removesuffix(".weight")
        for t in vision.closing_tensors + vision.projector_tensors
        if t.name not in norm_names
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
    return any(reaches(setting, block) for block, _ in vision.blocks) or reaches(setting, as_block(vision.stem_tensors))


def mergers(vision: Vision) -> list[tuple[ParameterTensor, ...]]:
    """Return the tensors of each patch merger: the last one first, then DeepStack's for outputs of earlier layers."""
    tensors_per_merger = len(vision.projector_tensors) // (len(vision.deepstack_layers) + 1)
    if not tensors_per_merger:
        return [()]
    return [
        vision.projector_tensors[i : i + tensors_per_merger]
        for i in range(0, len(vision.projector_tensors), tensors_per_merger)
    ]


def _merger_unit(
    job: TrainingJob, vision: Vision, setting: Setting, number: int, *, adds: bool, inventory: bool
) -> Unit:
    """Return the unit of a DeepStack merger, whose image tokens wait in a list for the layers of text.

    ``number``: which of the mergers of earlier layers' outputs.
    """
    tensors = mergers(vision)[number + 1]
    block, merge = as_block(tensors), tower_forward(vision.kind).early_tokens
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
        y = tower_forward(vision.kind).early_tokens(ctx, vision, tensors, x)
        ctx.extra_outputs.append(Value(y.storage, y.shape, y.dtype))
        return y

    shape, dtype = (Dim(setting.sequence, "P"), Dim(setting.hidden, "v")), stream_dtype(setting)
    curve = replay(run, setting, shape, dtype, inventory=inventory)
    if not setting.input_is_counted_elsewhere:
        return curve._replace(freed_input_bytes=0, gradient_bytes_of_later_units=curve.output_gradient_bytes)
    rows = rounded_bytes(shape, dtype)
    components = [("activations", rows), *(item for item in curve.forward_peak.components if item[0] != "activations")]
    components[0] = ("activations", rows + dict(curve.forward_peak.components).get("activations", 0))
    forward = curve.forward_peak._replace(bytes=curve.forward_peak.bytes + rows, components=tuple(components))
    return curve._replace(forward_peak=forward, gradient_bytes_of_later_units=curve.output_gradient_bytes)


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
    projector_vision = vision._replace(projector_tensors=mergers(vision)[0])
    block = as_block(projector_vision.closing_tensors + projector_vision.projector_tensors)
    project = tower_forward(vision.kind).project
    touched_tensors = touched_by(lambda ctx, x: project(ctx, projector_vision, x), whole(setting))
    require_covered(touched_tensors, elements(block), "the projector", job.framework.name)
    shape = (job.rows * job.sequence_length, architecture.hidden_size)
    end = _Ending(
        text_shape=shape,
        image_tokens=pictures.image_tokens,
        text_needs_gradient=rows_grad,
        returns_image_tokens=vision.returns_image_tokens and job.loss.keep_logits and not gives_towers(job, vision),
        returns_tower=gives_towers(job, vision) and job.loss.keep_logits,
        rows_are_scaled=architecture.embedding_scale == "model",
    )
    first = _with_tower_gradients(vision, projector_curve(projector_vision, setting, end, inventory), setting, end)
    later = first
    if adds:
        later = projector_curve(projector_vision, setting.for_later_micro_batches(), end, inventory)
        later = _with_tower_gradients(vision, later, setting, end)
    tensors = ending_tensors(vision, projector_vision.projector_tensors, setting)
    return Unit(kind="projector", name="projector and scatter", tensors=tensors, first_curve=first, later_curve=later)


def _with_tower_gradients(vision: Vision, curve: Curve, setting: Setting, end: _Ending) -> Curve:
    """Return the projector's memory curve with image tokens of DeepStack mergers, and with gradients for tower layers.

    These gradients are computed in the projector's backward, and stay allocated until the tower layers' backward.
    ``end``: shapes of image tokens and text.
    """
    # a last norm: the tower returns its output, and its input is freed
    if vision.closing_tensors or vision.placement == "put":
        curve = curve._replace(freed_input_bytes=0)
    _, text_width = end.text_shape
    image_tokens = (end.image_tokens, text_width)
    if end.returns_image_tokens:
        until_backward_ends = curve.until_backward_ends + rounded_bytes(image_tokens, setting.param_dtype)
        curve = curve._replace(until_backward_ends=until_backward_ends)
    if vision.feature_layers and setting.needs_input_gradient:
        curve = curve._replace(gradient_bytes_for_earlier_units=waiting_rows(vision, setting))
    if not vision.deepstack_layers:
        return curve
    merger_dtype = setting.autocast_dtype or setting.param_dtype
    merger_tokens = len(vision.deepstack_layers) * rounded_bytes(image_tokens, merger_dtype)
    gradients_wait = setting.needs_input_gradient or setting.trained or reaches(setting, as_block(mergers(vision)[1]))
    return curve._replace(
        extra_output_bytes=curve.extra_output_bytes + merger_tokens,
        gradient_bytes_for_earlier_units=merger_tokens if gradients_wait else 0,
    )


class _Ending(Record):
    """What the scatter of image tokens into text rows depends on, in addition to the tokens."""

    text_shape: tuple[int, int]
    """The embedded text, [rows * sequence, hidden]."""
    image_tokens: int
    """The number of image tokens."""
    text_needs_gradient: bool
    """The embedded text needs a gradient."""
    returns_image_tokens: bool
    """The model's output has the image tokens, and the training loop's variable keeps it to the end of the step."""
    returns_tower: bool
    """The model's output has all that tower and projector return; the variable keeps it likewise."""
    rows_are_scaled: bool
    """The language model multiplies the rows, so that a variable refers to its input until it has returned."""


@lru_cache(maxsize=512)
def projector_curve(vision: Vision, setting: Setting, end: _Ending, inventory: bool) -> Curve:
    """Replay the projector and the scatter of its image tokens into the looked-up text rows; return its memory curve.

    The input is [patches, tower width], the output [rows * sequence, hidden]. Variables of the model's forward, and the
    model's output if it has image tokens, keep tensors alive after the scatter.
    """
    stream = setting.param_dtype
    shape = (Dim(setting.sequence, "P"), Dim(setting.hidden, "v"))
    returned_tokens: list[Value] = []
    returned_storages: list[Storage] = []

    def run(ctx: Context, x: Value) -> Value:
        """Run the projector, and put its image tokens into the text embeddings."""
        features = tower_forward(vision.kind).project(ctx, vision, x)
        features = Value(features.storage, (end.image_tokens, end.text_shape[1]), features.dtype, features.origin)
        if features.dtype != stream:  # `image_features.to(inputs_embeds.dtype)`, which has a variable, too
            features = cast(ctx.tape, features, stream)
            if vision.placement != "put":
                ctx.extra_outputs.append(features.detach())
        if end.returns_image_tokens:
            returned_tokens.append(features)
        if end.returns_tower:
            last_hidden_state = (
                [] if vision.closing_tensors else [x]
            )  # a closing norm's output is among the extra outputs
            returned_storages.extend(storages_of([*ctx.extra_outputs, *last_hidden_state]))
        rows = Value(None, end.text_shape, stream, Leaf() if end.text_needs_gradient else None)
        if vision.placement == "added":
            features = add_image_tokens(ctx, rows, features)
        scatter = index_put if vision.placement == "put" else masked_scatter
        rows = scatter(ctx, rows, features)
        if end.rows_are_scaled:
            ctx.extra_outputs.append(rows.detach())
        return rows

    curve = replay(run, setting, shape, stream_dtype(setting), inventory=inventory)
    returned_bytes = sum(storage.bytes for storage in returned_storages)
    return curve._replace(until_backward_ends=curve.until_backward_ends + returned_bytes)


EVERY_PART = ("vision", "projector", "language")


class ForwardOnlyTower(Record):
    """Bytes of a vision tower in a forward pass without gradients, such as a reference model's."""

    peak: int = 0
    """The highest point of the tower's forward, including the embedded text."""
    held_by_variables: int = 0
    """What variables of the model's forward refer to while the text layers run."""
    returned_image_tokens: int = 0
    """Image tokens in the model's output; ``variables`` includes them."""


def forward_only_tower(job: TrainingJob, architecture: Architecture, setting: Setting) -> ForwardOnlyTower:
    """Return the bytes of a model's vision tower in a forward pass without gradients; all are 0 without images.

    ``setting``: that of the forward pass.
    """
    vision = architecture.vision
    if vision is None or not pictures_of(job, vision).patches:
        return ForwardOnlyTower()
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
    peak = variables = 0
    for run in side.runs:
        curve = run.unit.first_curve
        peak = max(peak, held_bytes + curve.forward_peak.bytes)
        output_bytes = curve.extra_output_bytes * run.times
        held_bytes += output_bytes
        if run.unit.kind == "merger":
            variables += output_bytes
        elif run.unit.kind == "projector":
            variables += curve.extra_output_bytes + curve.freed_input_bytes
    image_tokens = rounded_bytes((pictures_of(job, vision).image_tokens, architecture.hidden_size), setting.param_dtype)
    return ForwardOnlyTower(peak, variables, returned_image_tokens=image_tokens if vision.returns_image_tokens else 0)
