"""Option values for click: the same readers as everywhere, with click's way to say what is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import click

from memcheck.cli import values

COLOR = click.Choice(list(values.COLORS))

_Value = TypeVar("_Value")


def typed(read: Callable[[str], _Value]) -> Callable[[str], _Value]:
    """A reader as click wants it: the reason of a ValueError is shown with the option's name."""

    def convert(written: str) -> _Value:
        try:
            return read(written)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return convert


def gpu(written: str) -> str:
    """A GPU of the catalog."""
    from memcheck.catalog.gpus import find_gpu
    from memcheck.catalog.names import UnknownNameError

    try:
        return find_gpu(written).name
    except UnknownNameError as error:
        raise click.BadParameter(f"{error.message}; {error.help}" if error.help else error.message) from error


def setting(written: str) -> tuple[str, object]:
    """``dotted.key=value``; the value is read as YAML, as in the plan."""
    key, equals, text = written.partition("=")
    if not equals or not all(key.split(".")):
        raise click.BadParameter(f"{written!r} is not of the form training.micro_batch_size=4")
    from memcheck.edge.libyaml import yaml

    try:
        value = yaml.safe_load(text)
        finite = _is_finite(value)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: the 45th of January
        raise click.BadParameter(f"the value of {key} is not YAML: {text!r}") from error
    if not finite:
        raise click.BadParameter(f"the value of {key} must be finite: {text!r}")
    return key, value


def _is_finite(value: object) -> bool:
    """No NaN and no infinity at any depth. Ends in RecursionError for a value that contains itself."""
    if isinstance(value, float):
        return math.isfinite(value)
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return all(map(_is_finite, children))
