"""Options and arguments for click: values, what a shell completes them to, and help in groups."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar

import click

from memcheck.cli import values
from memcheck.cli.check_options import CHECK_OPTIONS, Option
from memcheck.report import FORMATS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


COMPLETING = "_MEMCHECK_COMPLETE"
"""Set by the script that click writes for a shell."""

Complete = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


def completing() -> bool:
    """Whether a shell asks for completions, or for the script that does."""
    return bool(os.environ.get(COMPLETING))


def files(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Whatever the shell itself completes to paths."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def one_of(names: Callable[[], Iterable[tuple[str, str]]]) -> Complete:
    """One of several names, each with a description for shells that show one."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        known = names()
        return [CompletionItem(name, help=text) for name, text in known if name.lower().startswith(incomplete.lower())]

    return complete


def formats() -> list[tuple[str, str]]:
    """The report formats to complete, as pairs of a name and an empty description."""
    return [(name, "") for name in FORMATS]


def rules() -> list[tuple[str, str]]:
    """Every rule by its code and by its name."""
    from memcheck.rules.registry import RULES

    return [(key, rule.summary) for rule in RULES for key in (rule.code, rule.name)]


def gpus() -> list[tuple[str, str]]:
    """The GPUs of the catalog."""
    return _records("gpu")


def models() -> list[tuple[str, str]]:
    """The models of the catalog."""
    return _records("model")


def _records(kind: str) -> list[tuple[str, str]]:
    from memcheck.catalog.names import canonical_names

    return [(name, "") for name in canonical_names(kind)]


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
        shell_complete=one_of(lambda: [(name, "") for name in formats]),
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


OFFERED = {each.__name__: each for each in (formats, rules, gpus, models)}
"""What a shell offers for an option's value, by the name in the option."""


def _completion(name: str) -> Complete | None:
    if not name:
        return None
    return files if name == "files" else one_of(OFFERED[name])


def _shared(key: str) -> Callable[[_Command], _Command]:
    return _parameter(next(each for each in CHECK_OPTIONS if each.key == key))


CONFIG, COLOR = _shared("config"), _shared("color")
"""Options of ``check`` that other commands have, too."""


setting = typed(lambda written: values.setting(written)[0])


AFTER_DASHES = "memcheck: after dashes"
REST = "Other"
"""The heading of options that are in no group."""


class SectionedCommand(click.Command):
    """A command whose help shows each option under the heading of its group.

    ``sections``: headings, in their order, each with the names of its parameters. What is in none comes last.
    """

    def __init__(self, *given: Any, sections: Mapping[str, tuple[str, ...]], **named: Any) -> None:
        """Take the groups; everything else is click's."""
        super().__init__(*given, **named)
        self.sections = sections

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One list for each group."""
        records: dict[str, tuple[str, str]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                records[parameter.name or ""] = record
        for heading, names in self.sections.items():
            rows = [records.pop(name) for name in names if name in records]
            with formatter.section(heading):
                formatter.write_dl(rows)
        with formatter.section(REST):
            formatter.write_dl(list(records.values()))


class LaunchCommand(SectionedCommand):
    """A command that takes a launch line after ``--``, which click would take for arguments like any other."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Note the words after the dashes."""
        if "--" in args:
            ctx.meta[AFTER_DASHES] = args[args.index("--") + 1 :]
        return super().parse_args(ctx, args)
