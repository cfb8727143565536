"""Examples that need a configuration: lines ``# memcheck.toml: ...`` at their top are one."""

from __future__ import annotations

from memcheck.config.find import Files, Settings
from memcheck.config.read import read_settings

MARK = b"# memcheck.toml: "


class _Held(Files):
    """A configuration that is no file."""

    def __init__(self, text: bytes) -> None:
        self._text = text

    def read(self, path: str, limit: int) -> bytes:
        """The text, whatever the path."""
        return self._text[:limit]


def settings_of(example: bytes) -> Settings:
    """The configuration that an example states."""
    lines = [line.removeprefix(MARK) for line in example.splitlines() if line.startswith(MARK)]
    return read_settings("memcheck.toml", _Held(b"\n".join(lines))) if lines else Settings()
