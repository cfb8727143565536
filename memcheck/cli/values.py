"""Reads option values. Each function raises ValueError with what is wrong; both readers of command lines use them."""

from __future__ import annotations

from collections.abc import Iterable

from memcheck.cli.options import Output, Share
from memcheck.config.find import fraction
from memcheck.errors import closest
from memcheck.report import BINARY, FORMATS

COLORS = ("auto", "always", "never")
MOST_DIGITS = 9
"""The most digits of a number of shares or processes: to read more takes long, and int() refuses the longest."""
MOST_JOBS = 60
"""Processes that one process can wait for on every system."""


def share(written: str) -> float:
    """``0.9`` or ``90%``."""
    return fraction(written)


def output(written: str, known: Iterable[str] = FORMATS) -> Output:
    """``FORMAT`` or ``FORMAT=FILE``."""
    name, equals, file = written.partition("=")
    if name not in known:
        close = closest(name, known)
        hint = f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"
        raise ValueError(f"unknown format {name!r}{hint}")
    if equals and not file:
        raise ValueError(f"{written!r} names no file")
    if name in BINARY and not equals:
        raise ValueError(f"{name} is not for the terminal: {name}=report.{name}")
    return Output(name, file or None)


def selectors(written: str) -> tuple[str, ...]:
    """Rule codes, prefixes of codes or names, separated by commas."""
    return tuple(part.strip() for part in written.split(",") if part.strip())


def gpu(written: str) -> str:
    """A GPU of the catalog by its name there."""
    from memcheck.catalog.names import UnknownNameError, find_gpu

    try:
        return find_gpu(written).name
    except UnknownNameError as error:
        raise ValueError(f"{error.message}; {error.help}" if error.help else error.message) from error


def release(written: str) -> str:
    """A release of a framework: ``4.57``."""
    from memcheck.config.read import is_release

    if not is_release(written):
        raise ValueError(f"{written!r} is not a release such as 4.57")
    return written


def count(written: str) -> int:
    """A whole number of at least 1."""
    if not (written.isdecimal() and len(written) <= MOST_DIGITS and int(written) >= 1):
        raise ValueError(f"{written!r} is not a whole number of at least 1")
    return int(written)


def setting(written: str) -> tuple[tuple[str, object], ...]:
    """``dotted.key=value``."""
    from memcheck.plan.read import read_stated

    return (read_stated(written),)


def define(written: str) -> tuple[tuple[str, str], ...]:
    """``NAME=VALUE``, a variable of a script."""
    name, equals, value = written.partition("=")
    if not equals or not name.isidentifier():
        raise ValueError(f"{written!r} is not of the form TP=8")
    return ((name, value),)


def gib(written: str) -> float:
    """An amount of memory in GiB."""
    try:
        number = float(written)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e9:
        raise ValueError(f"{written!r} is not an amount of memory in GiB: 1024")
    return int(number) if number.is_integer() else number


def config_format(written: str) -> str:
    """A format of configs that memcheck reads."""
    from memcheck.configs.formats import FORMATS as CONFIGS

    return one_of(tuple(CONFIGS), written)


def framework(written: str) -> str:
    """The name of a framework that plans may state; raises ValueError for another word."""
    from memcheck.frameworks.registry import FRAMEWORKS

    return one_of(tuple(FRAMEWORKS), written)


def images(written: str) -> dict[str, int]:
    """``per_sample: 2, width: 1280, height: 720``, in braces or without: a mapping of YAML."""
    from memcheck.config.read import parse_images

    return parse_images(written)


def jobs(written: str) -> int | None:
    """A number of processes; None for ``auto``."""
    if written == "auto":
        return None
    if not (written.isdecimal() and len(written) <= MOST_DIGITS and 1 <= int(written) <= MOST_JOBS):
        raise ValueError(f"{written!r} is neither auto nor a number from 1 to {MOST_JOBS}")
    return int(written)


def shard(written: str) -> Share:
    """``2/4``: the second of four shares."""
    number, slash, count = written.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal() and len(count) <= MOST_DIGITS):
        raise ValueError(f"{written!r} is not of the form 2/4")
    share = Share(int(number), int(count))
    if not 1 <= share.number <= share.shares:
        raise ValueError(f"{written!r} is none of the shares 1/{share.shares} to {share.shares}/{share.shares}")
    return share


def one_of(choices: tuple[str, ...], written: str) -> str:
    """One of several words."""
    if written not in choices:
        raise ValueError(f"{written!r} is not one of {', '.join(choices)}")
    return written
