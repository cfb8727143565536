"""What the shell offers for arguments and option values: ``_MEMCHECK_COMPLETE=bash_source memcheck`` and so on.

The names are looked up only while a shell completes, so that no command pays for them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import click

TYPE_CHECKING = False
if TYPE_CHECKING:  # a command that completes nothing does not pay for it
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
    from memcheck.report import FORMATS

    return [(name, "") for name in FORMATS]


def rules() -> list[tuple[str, str]]:
    """Every rule by its code and by its name."""
    from memcheck.rules.registry import RULES

    return [(key, rule.summary) for rule in RULES for key in (rule.code, rule.name)]


def gpus() -> list[tuple[str, str]]:
    """The GPUs of the catalog."""
    from memcheck.catalog.gpus import gpu_names

    return [(name, "") for name in gpu_names()]


def models() -> list[tuple[str, str]]:
    """The models of the catalog."""
    from memcheck.catalog.models import model_names

    return [(name, "") for name in model_names()]
