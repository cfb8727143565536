"""The doors to a framework's model code: fixed names in its folder's layers, states, objectives and encoder."""

from __future__ import annotations

from functools import lru_cache

from memcheck.autograd.context import Style
from memcheck.edge.imports import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from memcheck.accounts.ranks import Unit
    from memcheck.accounts.state import LocalTensor
    from memcheck.autograd.context import Context, Setting
    from memcheck.autograd.curve import Curve, Forward
    from memcheck.autograd.kernels import Weights
    from memcheck.autograd.tensor import Value
    from memcheck.frameworks.transformers.head import Head
    from memcheck.job.types import TrainingJob
    from memcheck.models.encoder import Encoder, Words
    from memcheck.models.types import Architecture, Block, Norm


if TYPE_CHECKING:

    class OwnLosses(Protocol):
        """What each ``objectives.py`` has."""

        def own_loss(self, ctx: Context, head: Head, box: list[Value], weights: Weights, /) -> Value:
            """Head and loss of an objective. ``box``: holds the only reference to what the head reads."""


@lru_cache(maxsize=16)
def own_losses_of(style: Style) -> OwnLosses:
    """Return the losses of a framework's own recipes."""
    found: OwnLosses = import_module(f"memcheck.frameworks.{style.folder}.objectives")  # a module with that name
    return found


if TYPE_CHECKING:

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
    """Return the framework's functions for what surrounds the layers of an encoder: embedding, final norm, masks."""
    found: EncoderCode = import_module(f"memcheck.frameworks.{style.folder}.encoder")  # a module with those names
    return found


if TYPE_CHECKING:

    class Layers(Protocol):
        """What each ``layers.py`` has."""

        def block(self, ctx: Context, block: Block, x: Value, /) -> Value:
            """One decoder layer, from the residual stream [tokens, hidden] to it."""

        def recomputing(self, block: Block, mode: str, /) -> tuple[Forward, bool]:
            """Return the layer's forward under a recompute mode (``none`` | ``full`` | ``selective``), and whether
            ``replay`` has to checkpoint it.
            """

        def norm(self, ctx: Context, norm: Norm | None, x: Value, /) -> Value:
            """A normalisation as the framework writes it; ``None`` is none."""

        def loss_in_pieces(self, ctx: Context, head: Head, h: Value, weights: Weights, /) -> Value | None:
            """Head and loss where they run piece by piece; ``None`` where the logits are one tensor."""

        def head_unit(
            self,
            job: TrainingJob,
            head: Head,
            setting: Setting,
            tensors: tuple[LocalTensor, ...],
            adds: bool,
            inventory: bool,
            /,
        ) -> Unit:
            """Return the unit of final norm, head and loss with its memory curves. ``adds``: some micro-batch adds to
            existing gradients.
            """

    class ModelStates(Protocol):
        """What each ``states.py`` has."""

        def rotary_tables(self, architecture: Architecture, setting: Setting, /) -> int:
            """Bytes of cos and sin that each forward of the model makes."""

        def rotary_caches(self, architecture: Architecture, sequence: int, layers: int, /, *, adapted: bool) -> int:
            """Return the bytes of the tables that ``layers`` layers hold, for ``sequence`` tokens. ``adapted``: the
            model has adapters.
            """


@lru_cache(maxsize=16)
def layers_of(style: Style) -> Layers:
    """Return the forward passes of a framework's modules."""
    found: Layers = import_module(f"memcheck.frameworks.{style.folder}.layers")  # a module with those names
    return found


@lru_cache(maxsize=16)
def model_states_of(style: Style) -> ModelStates:
    """Return the tensors that a framework's model holds in addition to its parameters."""
    found: ModelStates = import_module(f"memcheck.frameworks.{style.folder}.states")  # a module with those names
    return found
