"""Reads ``check`` lines without click, whose import costs more than checking a plan.

What is not certain here (an unknown option, a value that cannot be read, an abbreviation, ``--help``) is left to click,
which says what is wrong with it. Both readers are made of the same options.

``memcheck hook`` is ``check`` as pre-commit calls it: ``entry``, the user's ``args`` and the file names as one line,
without a ``--`` before the names. A committed file called ``--config=off.yaml`` would be read as an option.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from memcheck.cli.gate import run_check
from memcheck.cli.options import CheckOptions, is_launch
from memcheck.config.find import STDIN, SUFFIXES
from memcheck.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def parse_plain(arguments: list[str]) -> CheckOptions | None:
    """The options of a line of ``check``; None if click should read it."""
    if not arguments or arguments[0] != "check":
        return None
    if not any(argument.startswith("-") for argument in arguments):
        return CheckOptions(paths=tuple(arguments[1:]), arguments=tuple(arguments))
    from memcheck.cli.check_options import CHECK_OPTIONS

    known = {name: option for option in CHECK_OPTIONS for name in option.names}
    paths: list[str] = []
    found: dict[str, Any] = {}
    rest = iter(arguments[1:])
    for argument in rest:
        if argument == "--":
            words = tuple(rest)
            if is_launch(words):
                found["launch"] = words
            else:
                paths += words
            break
        if argument == "-" or not argument.startswith("-"):
            paths.append(argument)
            continue
        name, equals, written = argument.partition("=")
        try:
            option = known[name]
            if equals and (option.flag or not name.startswith("--")):  # click takes "=1" for the value of "-j=1"
                return None
            if option.flag:
                found[option.key] = True
            else:
                value: Any = option.value(written if equals else next(rest))
                found[option.key] = (*found.get(option.key, ()), *value) if option.repeatable else value
        except (KeyError, ValueError, StopIteration):
            return None
    return CheckOptions(paths=tuple(paths), arguments=tuple(arguments), **found)


def checked(arguments: list[str]) -> int | None:
    """The exit code of a line of ``check``; None if click should read it, and nothing was done."""
    options = parse_plain(arguments)
    return None if options is None else run_check(options)


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
