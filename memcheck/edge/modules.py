"""A module by its name, without ``importlib``: that imports ``warnings``, which takes longer than this."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def import_module(name: str) -> Any:
    """The module of this full name, loaded if it is not yet."""
    __import__(name)
    return sys.modules[name]
