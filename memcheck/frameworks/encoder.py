"""The door to what a framework runs around an encoder's layers: fixed names in its folder's ``encoder``."""

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
