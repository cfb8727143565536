"""The command that launches a job, on memcheck's own command line after ``--``."""

from __future__ import annotations

import os
from collections.abc import Sequence

from memcheck.config.discover import PlanFile
from memcheck.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.cli.options import CheckOptions

STDIN = "-"
FILES = (".yaml", ".yml", ".json", ".toml")
"""Suffixes of files that are never started as programs."""
_WITHOUT = {
    "fix": "--fix",
    "unsafe_fixes": "--unsafe-fixes",
    "diff": "--diff",
    "from_ref": "--from-ref",
    "shard": "--shard",
    "stdin_filename": "--stdin-filename",
    "skip_unmarked": "--skip-unmarked",
}
"""Options that are about files, by their fields."""


def is_launch(words: Sequence[str]) -> bool:
    """Whether the words after ``--`` are a command; otherwise they are paths, some of which may start with a dash.

    A command starts with a program, which is no file of that name, and has an option or a ``key=value``. Paths that do
    not exist are therefore still reported as paths.
    """
    if len(words) < 2 or words[0] == STDIN or words[0].startswith("-") or words[0].lower().endswith(FILES):
        return False
    if os.path.exists(words[0]):
        return False
    return any(word.startswith("-") or "=" in word for word in words[1:])


def launch_file(words: Sequence[str]) -> PlanFile:
    """The command as a file under the name that messages have for it."""
    import shlex

    from memcheck.configs.syntax import COMMAND

    return PlanFile(COMMAND, f"{shlex.join(words)}\n".encode())


def refuse_beside_launch(options: CheckOptions) -> None:
    """Refuse what a command has no use for.

    Raises:
        UsageError: there are paths as well, or an option that is about files.
    """
    if options.paths:
        raise UsageError(f"{options.paths[0]} and a command after --", "name one of them")
    for field, flag in _WITHOUT.items():
        if getattr(options, field) not in (None, False):
            raise UsageError(f"{flag} works on files, and a command after -- is no file", f"leave out {flag}")
