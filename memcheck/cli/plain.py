"""Reads ``check`` lines without click, whose import costs more than checking a plan.

What is not certain here (an unknown option, a value that cannot be read, an abbreviation, ``--help``) is left to click,
which says what is wrong with it. Both readers are made of the same options.
"""

from __future__ import annotations

from memcheck.cli.options import CheckOptions

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
            from memcheck.cli.job import is_launch

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
