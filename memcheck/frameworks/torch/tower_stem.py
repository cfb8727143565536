"""What runs in front of a vision tower's layers: from ``pixel_values`` to the rows of the first one."""

from __future__ import annotations

from memcheck.accounts.unit import Unit
from memcheck.autograd import Tape, Value
from memcheck.autograd.completeness import demand, elements, met, whole
from memcheck.autograd.context import Context, Setting
from memcheck.autograd.curve import Curve, closed, high
from memcheck.autograd.tensor import rounded_bytes
from memcheck.frameworks.torch.tower_tensors import as_block, part_tensors
from memcheck.frameworks.towers import tower_code
from memcheck.job.types import TrainingJob
from memcheck.models.vision import Vision
from memcheck.remembered import lru_cache


def stem_unit(
    job: TrainingJob, vision: Vision, setting: Setting, *, graph: bool, leaf: bool, adds: bool, inventory: bool
) -> Unit:
    """What runs in front of a tower's layers."""
    block = as_block(vision.stem)
    held = elements(block)

    def run(ctx: Context) -> None:
        tower_code(setting.style, vision.kind).stem(ctx, vision, False)

    demand(met(run, whole(setting)), held, "the vision tower's stem", job.framework.name)
    fresh = stem_curve(vision, setting, graph, leaf, inventory)
    again = stem_curve(vision, setting.later(), graph, leaf, inventory) if adds else fresh
    tensors = part_tensors(block, setting, "vision")
    return Unit(kind="stem", name="patch embedding", tensors=tensors, fresh=fresh, again=again)


@lru_cache(maxsize=512)
def stem_curve(vision: Vision, setting: Setting, graph: bool, leaf: bool, inventory: bool) -> Curve:
    """Replay the stem. Its output belongs to the first layer.

    ``graph``: some layer runs with a graph, which keeps the tables that all of them read. ``leaf``: the rows are made a
    leaf, which its AccumulateGrad keeps, with its gradient, until the backward is over.
    """
    tape = Tape(autocast=setting.autocast, inventory=inventory)
    ctx = Context(tape, setting)
    if setting.casts_features:  # an argument of the root's forward: it lives as long as autocast's copies do
        brought = (setting.sequence - vision.classes * setting.pictures, vision.channels)
        ctx.pixels = tape.value(brought, setting.params, "pixel_values, cast")
        held = Value(ctx.pixels.storage, brought, setting.params)
        tape.casts[id(held)] = held
    y, tables = tower_code(setting.style, vision.kind).stem(ctx, vision, leaf)
    leaf_bytes = rounded_bytes(tables[0].shape, tables[0].dtype) if leaf else 0
    ctx.pixels = None
    tables = [t for t in tables if t.storage is not y.storage]  # the first layer's input counts as its own
    forward_high = high(tape)
    if not graph:  # variables of the tower's forward
        ctx.returned += tables
        tables.clear()
    return closed(tape, ctx, y, forward_high)._replace(lingers=2 * leaf_bytes)
