"""``memcheck hook``: ``check`` as pre-commit calls it, with the names of committed files after the options.

pre-commit runs ``entry``, the user's ``args`` and the file names as one line, without a ``--`` before the names: a
committed file called ``--config=off.yaml`` would be read as an option.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from memcheck.config.find import STDIN, SUFFIXES
from memcheck.errors import UsageError

ENTRY = ("check", "--skip-unmarked", "--allow-empty", "--brief")


def check_line(arguments: Sequence[str]) -> list[str]:
    """The line of ``check`` that a hook's arguments stand for, with ``--`` before the first file name.

    The first argument that ends like a YAML file is a file name, whatever it starts with, and so are all arguments
    after it. The rule looks at nothing that a commit could change, so that no file can switch off an option of
    ``args``.

    Raises:
        UsageError: an option is also the name of a file, which a hook with its own ``files`` pattern may hand over.
    """
    count = next((at for at, each in enumerate(arguments) if each.lower().endswith(SUFFIXES)), len(arguments))
    count = next((at for at, each in enumerate(arguments[:count]) if each == "--"), count)
    options, names = list(arguments[:count]), list(arguments[count:])
    if names[:1] == ["--"]:
        del names[0]
    for option in options:
        if option.startswith("-") and option != STDIN and os.path.lexists(option):
            raise UsageError(
                f"{option!r} is an option of the hook and the name of a file",
                "rename the file, or end the hook's `args:` with `--`",
            )
    return [*ENTRY, *options, "--", *(name if name != STDIN else os.path.join(os.curdir, name) for name in names)]
