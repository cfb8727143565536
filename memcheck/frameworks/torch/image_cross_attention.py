"""The units of a tower whose image tokens layers of cross attention read (Llama 3.2 Vision).

The projector's output is live while the units of the language model run, as an encoder's is. So is its gradient, to
which every layer that reads the output adds.
"""

from __future__ import annotations

from functools import lru_cache

from memcheck.accounts.ranks import Unit
from memcheck.autograd.context import Context, Setting, elements, require_covered, touched_by, whole
from memcheck.autograd.curve import Curve, keeping, replay
from memcheck.autograd.kernels import MASK_ALIGNMENT
from memcheck.autograd.tensor import Dim, Value, rounded_bytes
from memcheck.families.tower import tower_forward
from memcheck.frameworks.torch.rank_tensors import as_block, stream_dtype
from memcheck.frameworks.torch.tower_tensors import part_tensors
from memcheck.job.types import TrainingJob
from memcheck.models.vision import Vision
from memcheck.record import Record


class Reading(Record):
    """How the language model's cross-attention layers read the image tokens."""

    batch: int
    sequence: int
    image_tokens_per_sample: int
    """Image tokens of one sample."""
    layers_are_checkpointed: bool
    """Checkpointed layers hold the image tokens and their mask, as arguments."""
    layers_save_image_tokens: bool
    """Layers save the image tokens themselves."""


def between_unit(job: TrainingJob, vision: Vision, setting: Setting, *, adds: bool, inventory: bool) -> Unit:
    """Return the unit of the modules between a tower's local layers and its global layers."""
    block = as_block(vision.middle_tensors)
    run = tower_forward(vision.kind).middle
    touched_tensors = touched_by(lambda ctx, x: run(ctx, vision, x), whole(setting))
    require_covered(touched_tensors, elements(block), "what stands between a tower's layers", job.framework.name)
    first_curve = between_curve(vision, setting, inventory)
    later_curve = between_curve(vision, setting.for_later_micro_batches(), inventory) if adds else first_curve
    tensors = part_tensors(block, setting)
    return Unit(
        kind="merger",
        name="in front of the global layers",
        tensors=tensors,
        first_curve=first_curve,
        later_curve=later_curve,
    )


@lru_cache(maxsize=512)
def between_curve(vision: Vision, setting: Setting, inventory: bool) -> Curve:
    """Replay what runs between the two kinds of layers."""

    def run(ctx: Context, x: Value) -> Value:
        return tower_forward(vision.kind).middle(ctx, vision, x)

    shape = (Dim(setting.sequence, "P"), Dim(setting.hidden, "v"))
    return replay(run, setting, shape, stream_dtype(setting), inventory=inventory)


def reading_of(setting: Setting, dtype: str, *, recomputed: bool) -> Reading:
    """Return how the language model reads the image tokens.

    Its linear layers save them as they are. Adapters of another dtype save a copy. ``dtype``: of the image tokens.
    """
    adapter = setting.adapter
    saves = setting.trained or (adapter is not None and bool(adapter.targets) and adapter.module_dtype == dtype)
    return Reading(
        batch=setting.batch,
        sequence=setting.sequence,
        image_tokens_per_sample=setting.encoder_length,
        layers_are_checkpointed=recomputed,
        layers_save_image_tokens=saves,
    )


def reading_unit(
    job: TrainingJob,
    vision: Vision,
    setting: Setting,
    reading: Reading,
    waiting_gradients: int,
    *,
    adds: bool,
    inventory: bool,
) -> Unit:
    """Return the unit of the projector and of the cross-attention mask over its image tokens.

    ``reading``: how text layers read the image tokens. ``waiting_gradients``: bytes of gradients of the tower's layers,
    which stay allocated until those layers' backward. ``adds``: some micro-batch adds to existing gradients.
    """
    block = as_block(vision.projector_tensors)
    project = tower_forward(vision.kind).project
    touched_tensors = touched_by(lambda ctx, x: project(ctx, vision, x), whole(setting))
    require_covered(touched_tensors, elements(block), "the projector", job.framework.name)
    first = reading_curve(vision, setting, reading, inventory)._replace(
        gradient_bytes_for_earlier_units=waiting_gradients
    )
    later = reading_curve(vision, setting.for_later_micro_batches(), reading, inventory)
    later = later._replace(gradient_bytes_for_earlier_units=waiting_gradients) if adds else first
    tensors = part_tensors(block, setting)
    return Unit(kind="projector", name="projector and masks", tensors=tensors, first_curve=first, later_curve=later)


@lru_cache(maxsize=512)
def reading_curve(vision: Vision, setting: Setting, reading: Reading, inventory: bool) -> Curve:
    """Replay the projector and ``_prepare_cross_attention_mask`` of modeling_mllama.py; return the memory curve.

    ``reading``: sizes of the text that reads the pictures, and whether its layers save or recompute what they read.
    """
    dtype = setting.autocast_dtype or setting.param_dtype
    mask_shape = (reading.batch, reading.sequence, reading.image_tokens_per_sample)
    is_aligned = setting.autocast_dtype is None and not reading.image_tokens_per_sample % MASK_ALIGNMENT

    def run(ctx: Context, x: Value) -> Value:
        """Run the projector, and allocate the mask of pictures as its function does, step by step."""
        tape = ctx.tape
        y = tower_forward(vision.kind).project(ctx, vision, x)
        repeated = tape.new(mask_shape, "int64", "repeat_interleave")
        wide = tape.new(mask_shape, "fp32", "inverted mask")
        inverted = tape.new(mask_shape, ctx.setting.param_dtype, "to") if ctx.setting.param_dtype != "fp32" else wide
        del wide
        chosen = tape.new(mask_shape, "bool", "to bool")
        mask = tape.value(mask_shape, ctx.setting.param_dtype, "mask of pictures")
        del repeated, inverted, chosen
        ctx.extra_outputs.append(mask)
        return y

    shape = (Dim(setting.sequence, "P"), Dim(setting.hidden, "v"))
    curve = replay(run, setting, shape, stream_dtype(setting), inventory=inventory)._replace(freed_input_bytes=0)
    tokens = (reading.batch * reading.image_tokens_per_sample, vision.token_width)
    output = rounded_bytes(tokens, dtype)
    if reading.layers_save_image_tokens or reading.layers_are_checkpointed:
        curve = keeping(curve, output, (("image tokens", tokens, dtype, output, "activations", 1),))
    else:  # a variable
        curve = curve._replace(extra_output_bytes=curve.extra_output_bytes + output)
    if is_aligned or reading.layers_are_checkpointed:  # by the graph of every layer that reads it
        size = rounded_bytes(mask_shape, setting.param_dtype)
        entry = ("mask of pictures", mask_shape, setting.param_dtype, size, "activations", 1)
        curve = keeping(curve, size, (entry,))._replace(extra_output_bytes=curve.extra_output_bytes - size)
    return curve._replace(gradient_bytes_of_later_units=curve.output_gradient_bytes)
