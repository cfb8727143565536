"""Regular expressions that are compiled when they are first used."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_compile = re.compile


class LatePattern:
    """A regular expression that is compiled when it is first asked for something."""

    __slots__ = ("_arguments", "_pattern")

    def __init__(self, *arguments: Any) -> None:
        self._arguments = arguments
        self._pattern: re.Pattern[str] | None = None

    def __getattr__(self, name: str) -> Any:
        """What the compiled pattern has under that name."""
        if self._pattern is None:
            self._pattern = _compile(*self._arguments)
        return getattr(self._pattern, name)


@contextmanager
def late_patterns(prefix: str) -> Iterator[None]:
    """Inside, modules whose names begin so compile late; every other that is imported along compiles as ever.

    PyYAML's ``reader`` and ``resolver`` compile patterns over the whole of Unicode when they are imported: a third of
    the time that importing it takes.
    """

    def late(*arguments: Any) -> Any:
        of_prefix = sys._getframe(1).f_globals.get("__name__", "").startswith(prefix)  # noqa: SLF001 - no other way
        return LatePattern(*arguments) if of_prefix else _compile(*arguments)

    re.compile = late  # type: ignore[assignment]
    try:
        yield
    finally:
        re.compile = _compile
