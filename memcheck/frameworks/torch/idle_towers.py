"""Units of a tower that do not run or whose output is unused: layers after the features, pooling, idle layers."""

from __future__ import annotations

from functools import lru_cache

from memcheck.accounts.ranks import IDLE, Unit
from memcheck.autograd import Tape, Value
from memcheck.autograd.context import Context, Setting
from memcheck.autograd.curve import Curve, Peak, checkpointed, high
from memcheck.autograd.tensor import Dim, Leaf, rounded_bytes
from memcheck.frameworks.layers import layers_of
from memcheck.frameworks.torch.dtypes import stream_dtype
from memcheck.frameworks.torch.tower_setup import gives_towers
from memcheck.frameworks.torch.tower_tensors import PROBE, idle_blocks, idle_group, idle_tensors, part_setting
from memcheck.job.images import Pictures
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture, Block
from memcheck.models.vision import Vision

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


def idle_units(
    job: TrainingJob, architecture: Architecture, base: Setting, pictures: Pictures
) -> list[tuple[Unit, int, int]]:
    """Return the units whose weights are resident and do not run, as (unit, how many are equal, number of the
    first).
    """
    idle = idle_blocks(architecture, has_pictures=pictures.rows > 0)
    return [(_idle(job, block, part_setting(job, base, part)), n, 0) for block, n, part in idle]


def told_apart(
    idle: list[tuple[Unit, int, int]], vision: Vision, pictures: Pictures, base: Setting
) -> tuple[list[tuple[Unit, int, int]], list[tuple[Unit, int, int]]]:
    """Split units whose output no loss reads into those that do not run, and SigLIP's attention pooling, which runs.

    ``idle``: such units with their counts. The pooling runs after the tower's layers, as an FSDP unit by itself
    (``_no_split_modules``): its activations are live with its gathered parameters.
    """
    pooling = [run for run in idle if pictures.rows and any(t.name == PROBE for t in run[0].tensors)]
    row_bytes = rounded_bytes((pictures.rows, vision.hidden), base.autocast_dtype or base.param_dtype)
    # nn.MultiheadAttention of one query over all patches: six tensors as large as the patches
    highest = Peak(6 * row_bytes, "keys and values", (("activations", 6 * row_bytes),))
    curve = NOTHING_RUNS._replace(forward_peak=highest)
    runs = []
    for unit, _, _ in pooling:
        kind = "idle" if unit.kind == IDLE else unit.kind
        runs.append((unit._replace(kind=kind, name="attention pooling", first_curve=curve, later_curve=curve), 1, 0))
    return [run for run in idle if run not in pooling], runs


def _idle(job: TrainingJob, block: Block, setting: Setting) -> Unit:
    """Return the unit of a block that does not run: it has no gradient and no optimizer state.

    A block that is not a layer is in the root's FSDP group, which is gathered all step.
    """
    kind = IDLE if idle_group(job, block) == "layer" else "beside"
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
    """Replay a layer whose output nothing reads. ``returned``: its graph and output, which ``last_hidden_state`` is.

    ``is_returned``: the model's output has it, so that the copies of weights in its graph outlive autocast's own.
    """
    tape = Tape(autocast=setting.autocast_dtype, inventory=inventory)
    ctx = Context(tape, setting)
    shape, dtype = (Dim(setting.sequence, "P"), Dim(setting.hidden, "v")), stream_dtype(setting)
    x = Value(tape.new(shape, dtype, "block input"), shape, dtype, Leaf() if setting.needs_input_gradient else None)
    forward, is_checkpointed = layers_of(setting.style).recomputing(block, recompute)
    y = checkpointed(ctx, forward, x) if is_checkpointed else forward(ctx, x)
    highest, held_bytes = (
        high(tape),
        tape.live - rounded_bytes(shape, dtype),
    )  # the features count as the projector's input
    del y
    x.storage = None
    ctx.extra_outputs.clear()
    has_graph = setting.needs_input_gradient or setting.trained or setting.adapter is not None
    cast_bytes = 0 if is_returned and has_graph else tape.live
    tape.casts.clear()
    features = rounded_bytes(shape, dtype)  # there while the layer is gathered
    return NOTHING_RUNS._replace(
        forward_peak=highest,
        autocast_cache_bytes=cast_bytes,
        extra_output_bytes=held_bytes - cast_bytes,
        input_bytes=features,
    )
