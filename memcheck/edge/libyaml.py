"""PyYAML, imported without what its pure-Python reader compiles at import time and libyaml's parser never uses.

``yaml.reader`` and ``yaml.resolver`` compile patterns over the whole of Unicode when they are imported: a third of the
time that importing PyYAML takes, on every check. Here each is compiled when it is first used, by whoever uses it.
"""

from __future__ import annotations

import re
import sys

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


def _late(*arguments: Any) -> Any:
    """``re.compile`` for PyYAML's own modules, and as ever for every other that is imported along."""
    of_yaml = sys._getframe(1).f_globals.get("__name__", "").startswith("yaml.")  # noqa: SLF001 - no other way to tell
    return LatePattern(*arguments) if of_yaml else _compile(*arguments)


if "yaml" in sys.modules:
    import yaml
else:
    re.compile = _late  # type: ignore[assignment]
    try:
        import yaml
    finally:
        re.compile = _compile

__all__ = ["LatePattern", "yaml"]
