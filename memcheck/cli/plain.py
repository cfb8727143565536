"""Reads ``check`` lines without click, whose import costs more than checking a plan.

Whatever is not certain here (an unknown option, a value that cannot be read, an abbreviation, ``--help``) is left to
click, which says what is wrong with it. A test holds both readers to the same answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from memcheck.cli import values
from memcheck.cli.options import CheckOptions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FLAGS = {
    "--allow-empty": "allow_empty",
    "--exit-zero": "exit_zero",
    "--fix": "fix",
    "--unsafe-fixes": "unsafe_fixes",
    "--diff": "diff",
    "--no-suppressions": "no_suppressions",
    "--quiet": "quiet",
    "-q": "quiet",
    "--skip-unmarked": "skip_unmarked",
    "--statistics": "statistics",
}
SINGLE: dict[str, Callable[[str], object]] = {
    "--fail-on": values.fail_on,
    "--profile": values.profile,
    "--fail-above": values.share,
    "--warn-above": values.share,
    "--color": values.color,
    "--config": str,
    "--config-from-ref": str,
    "--baseline": str,
    "--stdin-filename": str,
    "--from-ref": str,
    "--show-settings": str,
}
"""Options with a value, of which the last one counts."""
REPEATED: dict[str, Callable[[str], tuple[object, ...]]] = {
    "--format": lambda written: (values.output(written),),
    "--select": values.selectors,
    "--ignore": values.selectors,
    "--extend-select": values.selectors,
}
"""Options that may come several times and add up."""
NAMES = {"--format": "outputs"}


def parse_plain(arguments: list[str]) -> CheckOptions | None:
    """The options of a line of ``check``; None if click should read it."""
    if not arguments or arguments[0] != "check":
        return None
    paths: list[str] = []
    options: dict[str, Any] = {}
    rest = iter(arguments[1:])
    for argument in rest:
        if argument == "--":
            paths += rest
        elif argument == "-" or not argument.startswith("-"):
            paths.append(argument)
        elif argument in FLAGS:
            options[FLAGS[argument]] = True
        else:
            try:
                _read(argument, rest, options)
            except (KeyError, ValueError, StopIteration):
                return None
    return CheckOptions(paths=tuple(paths), arguments=tuple(arguments), **options)


def _read(argument: str, rest: Iterator[str], options: dict[str, Any]) -> None:
    """Add one option with its value, which may follow an equals sign or be the next argument."""
    option, equals, written = argument.partition("=")
    if not equals:
        written = next(rest)
    name = NAMES.get(option, option[2:].replace("-", "_"))
    if option in REPEATED:
        options[name] = (*options.get(name, ()), *REPEATED[option](written))
    else:
        options[name] = SINGLE[option](written)
