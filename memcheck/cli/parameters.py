"""Option values for click: the same readers as everywhere, with click's way to say what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, TypeVar

import click

from memcheck.cli import completion, values
from memcheck.cli.check_options import CHECK_OPTIONS, Option

_Value = TypeVar("_Value")
_Command = TypeVar("_Command", bound=Callable[..., Any])


def typed(read: Callable[[str], _Value]) -> Callable[[str], _Value]:
    """A reader as click wants it: the reason of a ValueError is shown with the option's name."""

    def convert(written: str) -> _Value:
        try:
            return read(written)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return convert


gpu = typed(values.gpu)


def options(table: Iterable[Option]) -> Callable[[_Command], _Command]:
    """A decorator that gives a command the options of a table, in its order, under the names of their fields.

    A repeatable option that does not come is not passed on: the command's own default holds.
    """

    def decorate(command: _Command) -> _Command:
        @wraps(command)
        def called(**given: Any) -> Any:
            for option in table:
                if option.repeatable:
                    found = sum(given.pop(option.key), ())
                    given.update({option.key: found} if found else {})
            return command(**given)

        decorated: Any = called
        for option in reversed(tuple(table)):
            decorated = _parameter(option)(decorated)
        return decorated  # type: ignore[no-any-return]

    return decorate


def outputs(formats: Sequence[str]) -> Callable[[_Command], _Command]:
    """``--format`` of a command with these formats, of which the first is the default."""
    default, *others, last = formats
    told = f"{', '.join([f'{default} (default)', *others])} or {last}"
    return click.option(
        "--format",
        "outputs",
        type=typed(lambda written: values.output(written, formats)),
        metavar="FORMAT[=FILE]",
        multiple=True,
        shell_complete=completion.one_of(lambda: [(name, "") for name in formats]),
        help=f"{told}; =FILE writes there instead of stdout. Repeatable.",
    )


def _parameter(option: Option) -> Callable[[_Command], _Command]:
    """A decorator that gives a command one option."""
    if option.flag:
        return click.option(*option.names, option.key, is_flag=True, help=option.help)
    plain = str if option.read is str else typed(option.read)
    default: dict[str, Any] = {"default": option.default} if option.default else {}
    return click.option(
        *option.names,
        option.key,
        type=click.Choice(option.choices) if option.choices else plain,
        metavar=option.metavar or None,
        multiple=option.repeatable,
        shell_complete=_completion(option.completion),
        help=option.help,
        **default,
    )


def _completion(name: str) -> completion.Complete | None:
    if not name:
        return None
    return completion.files if name == "files" else completion.one_of(getattr(completion, name))


def _shared(key: str) -> Callable[[_Command], _Command]:
    return _parameter(next(each for each in CHECK_OPTIONS if each.key == key))


CONFIG, COLOR = _shared("config"), _shared("color")
"""Options of ``check`` that other commands have, too."""


setting = typed(lambda written: values.setting(written)[0])
