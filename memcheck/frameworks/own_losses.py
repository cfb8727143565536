"""The door to a framework's own losses over preferences and from a teacher: its folder's ``objectives.py``."""

from __future__ import annotations

from memcheck.autograd.style import Style
from memcheck.edge.modules import import_module
from memcheck.remembered import lru_cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from memcheck.autograd.context import Context
    from memcheck.autograd.matrix import Weights
    from memcheck.autograd.tensor import Value
    from memcheck.frameworks.transformers.head import Head

    class OwnLosses(Protocol):
        """What each ``objectives.py`` has."""

        def own_loss(self, ctx: Context, head: Head, box: list[Value], weights: Weights, /) -> Value:
            """Head and loss of an objective. ``box``: holds the only reference to what the head reads."""


@lru_cache(maxsize=16)
def own_losses_of(style: Style) -> OwnLosses:
    """The losses of a framework's own recipes."""
    found: OwnLosses = import_module(f"memcheck.frameworks.{style.folder}.objectives")  # a module with that name
    return found
