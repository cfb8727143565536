"""The door to a framework's vision towers: fixed names in its folder's ``towers``, one module a kind."""

from __future__ import annotations

from memcheck.edge.modules import import_module
from memcheck.remembered import lru_cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from memcheck.autograd.context import Context, Setting
    from memcheck.autograd.curve import Curve
    from memcheck.autograd.style import Style
    from memcheck.autograd.tensor import Value
    from memcheck.models.encoder import Encoder, Words
    from memcheck.models.types import ParameterTensor
    from memcheck.models.vision import Vision

    class TowerCode(Protocol):
        """What each module has."""

        def stem(self, ctx: Context, vision: Vision, leaf: bool, /) -> tuple[Value, list[Value]]:
            """From ``pixel_values`` to the rows of the first layer, followed by what every layer reads: rotary tables,
            masks. ``leaf``: the patch embedding's output is made a leaf, which its AccumulateGrad keeps: it is among
            the others, too.
            """

        def project(self, ctx: Context, vision: Vision, x: Value, /) -> Value:
            """Image tokens of the last layer's rows. What variables of the model's forward refer to goes to
            ``ctx.returned``.
            """

        def between(self, ctx: Context, vision: Vision, x: Value, /) -> Value:
            """What runs between the first kind of layers and the second; Llama 3.2 Vision's alone."""

        def merged(self, ctx: Context, vision: Vision, tensors: tuple[ParameterTensor, ...], x: Value, /) -> Value:
            """Image tokens of rows that an earlier layer made, by a merger of those tensors; Qwen3-VL's alone."""

    class ScatterCode(Protocol):
        """What ``towers/scatter.py`` has."""

        def scatter(self, ctx: Context, rows: Value, features: Value, /) -> Value:
            """The looked-up rows with the image tokens in their places, by ``masked_scatter``."""

        def added(self, ctx: Context, rows: Value, features: Value, /) -> Value:
            """The image tokens with what was looked up in their places."""

        def put(self, ctx: Context, rows: Value, features: Value, /) -> Value:
            """The looked-up rows with the image tokens in their places, by ``index_put``."""

    class EncoderCode(Protocol):
        """What ``encoder.py`` has."""

        def source(self, ctx: Context, encoder: Encoder, words: Words, /) -> Value:
            """The rows of an encoder's first layer."""

        def source_curve(self, encoder: Encoder, words: Words, setting: Setting, inventory: bool, /) -> Curve:
            """The curve of what makes them."""

        def end(self, ctx: Context, encoder: Encoder, x: Value, /) -> Value:
            """The encoder's output of its last layer's rows."""

        def masks(self, encoder: Encoder, setting: Setting, /) -> tuple[int, int, int]:
            """Bytes of the stack's masks: kept by backward functions, given to its layers, made for none."""


@lru_cache(maxsize=8)
def encoder_code(style: Style) -> EncoderCode:
    """What stands around the layers of an encoder."""
    found: EncoderCode = import_module(f"memcheck.frameworks.{style.folder}.encoder")  # a module with those names
    return found


@lru_cache(maxsize=32)
def tower_code(style: Style, kind: str) -> TowerCode:
    """The forward passes of a kind of tower."""
    found: TowerCode = import_module(f"memcheck.frameworks.{style.folder}.towers.{kind}")  # a module with those names
    return found


def scatter_code(style: Style) -> ScatterCode:
    """How image tokens come to their places."""
    found: ScatterCode = import_module(f"memcheck.frameworks.{style.folder}.towers.scatter")
    return found
