"""``lru_cache`` as ``functools`` has it, without ``functools``: the cache is written in C, and the rest is not used.

``functools`` imports ``collections``, ``reprlib`` and ``types``, which takes half as long as starting the interpreter.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from functools import lru_cache
    from typing import Any

__all__ = ["lru_cache"]

try:
    from _functools import _lru_cache_wrapper as _cache  # type: ignore[import-not-found]
except ImportError:  # another interpreter than CPython
    from functools import lru_cache
else:
    if not TYPE_CHECKING:

        def lru_cache(maxsize: int) -> Any:
            """Remember the last answers of a function, at most ``maxsize`` of them."""

            def remember(function: Any) -> Any:
                remembered = _cache(function, maxsize, False, _counts)
                for name in ("__module__", "__name__", "__qualname__", "__doc__"):
                    setattr(remembered, name, getattr(function, name))
                remembered.__wrapped__ = function
                return remembered

            return remember


def _counts(*counts: int) -> Any:
    """The value of ``cache_info``: hits, misses, greatest size, size."""
    from functools import _CacheInfo

    return _CacheInfo(*counts)
