"""What a kind of vision tower runs, and how trainers treat its modules: one record for each, found by its name."""

from __future__ import annotations

from functools import lru_cache

from memcheck.edge.imports import import_module
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from memcheck.autograd.context import Context
    from memcheck.autograd.tensor import Value
    from memcheck.models.types import ParameterTensor
    from memcheck.models.vision import Vision


def _as_they_are(ctx: Context, vision: Vision, rows: Value) -> Value:
    """The rows of a tower whose layers are of one kind."""
    return rows


def _unmerged(ctx: Context, vision: Vision, tensors: tuple[ParameterTensor, ...], rows: Value) -> Value:
    """The rows of a tower without mergers of earlier layers."""
    return rows


class TowerForward(Record):
    """The forward passes of a kind of tower, in ``FORWARDS`` of its file in :mod:`memcheck.families.towers`."""

    stem: Callable[[Context, Vision, bool], tuple[Value, list[Value]]]
    """From ``pixel_values`` to the rows of the first layer, followed by what every layer reads: rotary tables, masks.
    With the flag the patch embedding's output is made a leaf, which AccumulateGrad keeps. It is among the others, too.
    """
    project: Callable[[Context, Vision, Value], Value]
    """Image tokens of the last layer's rows. Tensors that the model's variables hold go to ``ctx.extra_outputs``."""
    between: Callable[[Context, Vision, Value], Value] = _as_they_are
    """What runs between the first kind of layers and the second (Llama 3.2 Vision, MiniCPM-V)."""
    merged: Callable[[Context, Vision, tuple[ParameterTensor, ...], Value], Value] = _unmerged
    """Image tokens of rows that an earlier layer made, by a merger of those tensors (Qwen3-VL)."""
    loops: bool = False
    """The tower's own forward loops over the layers with one variable for the rows. Other towers have an encoder."""
    wrapped: tuple[str, ...] = ("layers",)
    """Modules that ``_no_split_modules`` of transformers 5.24 names: ``layers``, or their ``attention`` alone,
    ``embedding`` of patches, ``projector``.
    """
    hooked_by_swift: bool = False
    """Only ms-swift names the patch embedding for ``enable_input_require_grads``."""


@lru_cache(maxsize=32)
def tower_forward(kind: str) -> TowerForward:
    """Return the forward passes of a tower, by ``module:name`` in ``FORWARDS`` of :mod:`memcheck.families.towers`."""
    module, name = kind.split(":")
    forwards: dict[str, TowerForward] = import_module("memcheck.families.towers." + module).FORWARDS
    return forwards[name]
