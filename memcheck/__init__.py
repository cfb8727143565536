"""A linter and CI gate for LLM training plans: predicts the peak memory of every GPU.

``memcheck.estimate``, ``memcheck.judge`` and ``memcheck.suggest`` are the commands as functions. They answer with
pydantic models (:mod:`memcheck.report.models`), which are loaded when one of them is first asked for.
"""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.api import check, estimate, suggest
    from memcheck.errors import ConfigurationError, MemcheckError, UsageError

__all__ = ["ConfigurationError", "MemcheckError", "UsageError", "__version__", "check", "estimate", "suggest"]


def __getattr__(name: str) -> object:
    """The functions and errors of the package, loaded when they are first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    home = "memcheck.api" if name in ("check", "estimate", "suggest") else "memcheck.errors"
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    """The names that users of the package call."""
    return __all__
