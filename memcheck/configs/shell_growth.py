"""How much a script's variables add to it, all together: a variable that holds another twice doubles it."""

from __future__ import annotations

from memcheck.configs.config_file import located
from memcheck.finding import Location, Span

MOST_WORDS = 100_000
"""Words that variables stand for, wherever they are used. Each use counts."""
MOST_CHARACTERS = 4 << 20
"""Characters that variables add to values and arguments, wherever they are used."""
_HELP = "write the arguments where the command starts, each of them once"


class ScriptGrowth:
    """The budget of one script."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._words = 0
        self._characters = 0

    def words(self, name: str, line: int, count: int) -> None:
        """Count the words of a variable that is used.

        Raises:
            ConfigError: with those before, there are more than ``MOST_WORDS``.
        """
        self._words += count
        if self._words > MOST_WORDS:
            raise self._refused(name, line, f"more than {MOST_WORDS:,} words", f"{count:,} words")

    def characters(self, name: str, line: int, before: str, after: str) -> None:
        """Count what the text of a variable or an argument grew by.

        Raises:
            ConfigError: with those before, there are more than ``MOST_CHARACTERS``.
        """
        self._characters += max(0, len(after) - len(before))
        if self._characters > MOST_CHARACTERS:
            raise self._refused(name, line, f"more than {MOST_CHARACTERS:,} characters", f"{len(after):,} characters")

    def _refused(self, name: str, line: int, most: str, own: str) -> Exception:
        at = Location(self._path, Span(line, 1, line, 2))
        what = f"`{name}`" if name else "an argument"
        return located(at, f"the script's variables grow to {most}: {what} alone is {own} here", _HELP)
