"""Reads and validates one configuration file: shares of capacity, images per sample, prices, policy, version."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable
from math import isfinite

from memcheck import __version__
from memcheck.catalog.names import find_gpu
from memcheck.config.find import FAIL_ON, LARGEST, UNCERTAIN, ConfigHardware, Files, Settings, fraction, known
from memcheck.edge.libyaml import yaml
from memcheck.edge.opener import is_inside, repository
from memcheck.edge.toml import TomlError, parse_toml
from memcheck.errors import ConfigurationError, MemcheckError, UsageError, closest
from memcheck.plan.finding import SEVERITIES
from memcheck.plan.schema import conforms, load_schema
from memcheck.rules import PROFILES
from memcheck.rules.types import Governance

OPERATORS = {
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
RELEASE = re.compile(r"v?\d{1,9}(\.\d{1,9}){0,9}[A-Za-z0-9.+-]{0,40}")
CLAUSE = re.compile(r"\s*(==|!=|>=|<=|>|<|)\s*(\d+(?:\.\d+)*)\s*$")


def is_release(written: str) -> bool:
    """Whether a text is a release of some framework: ``4.57``, ``0.2.2.dev1``."""
    return RELEASE.fullmatch(written) is not None


def accepts(requirement: str, version: str) -> bool:
    """Whether a version satisfies ``>=0.1,<0.2`` or, without an operator, is exactly the one named.

    Raises:
        ValueError: the requirement cannot be read.
    """
    clauses = [_clause(part, version) for part in requirement.split(",")]  # all of them, so that each is validated
    return all(clauses)


def _clause(text: str, version: str) -> bool:
    match = CLAUSE.match(text)
    if not match:
        raise ValueError(f"{text.strip()!r} is not a version requirement such as >=0.1 or ==0.1.0")
    mine, wanted = _parts(version), _parts(match[2])
    size = max(len(mine), len(wanted))
    compare = OPERATORS[match[1] or "=="]
    return bool(compare(mine + (0,) * (size - len(mine)), wanted + (0,) * (size - len(wanted))))


def _parts(version: str) -> tuple[int, ...]:
    """The release numbers; what follows them (``.dev1``, ``rc2``) does not count."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def read_settings(path: str, files: Files | None = None) -> Settings:
    """The settings of ``memcheck.toml`` or of ``[tool.memcheck]``; the defaults if that table is missing.

    ``files``: what the path is read from instead of the working tree.

    Raises:
        ConfigurationError: the file is not readable, not TOML, or has an unknown key or a wrong value.
    """
    files = files or Files()
    name = _shown(path)
    shown = name + files.origin
    try:
        table: object = parse_toml(files.read(path, LARGEST).decode("utf-8"))
    except OSError as error:
        raise ConfigurationError(f"cannot read the configuration {shown}: {error.strerror or error}") from error
    except (TomlError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{shown} is not valid TOML: {error}") from error
    if os.path.basename(path) == "pyproject.toml":
        for key in ("tool", "memcheck"):
            table = table.get(key) if isinstance(table, dict) else None
        if table is None:
            return Settings()
    if not isinstance(table, dict):
        raise ConfigurationError(f"{shown}: tool.memcheck must be a table")
    return _settings(table, path, shown)._replace(file=name)


def _settings(table: dict[str, object], path: str, shown: str) -> Settings:
    """Checked values, with paths relative to the working directory; ``shown`` names the file in messages."""
    values: dict[str, object] = {}
    for key, written in table.items():
        if key not in READERS:
            raise ConfigurationError(f"{shown}: unknown key {key!r}{_suggestion(key)}", f"known: {', '.join(READERS)}")
        try:
            values[key.replace("-", "_")] = READERS[key](written)
        except ValueError as error:
            raise ConfigurationError(f"{shown}: {key}: {error}") from error
        except UsageError as error:
            raise ConfigurationError(f"{shown}: {key}: {error.message}", error.help) from error
    required = values.pop("required_version", None)
    if required:
        raise ConfigurationError(
            f"{shown} requires memcheck {required}, and this is {__version__}",
            "install the version that the project asks for, or change required-version",
        )
    base = os.path.relpath(os.path.dirname(os.path.abspath(path)))
    paths, baseline = values.get("paths"), values.get("baseline")
    if isinstance(paths, tuple):
        values["paths"] = tuple(os.path.normpath(os.path.join(base, item)) for item in paths)
    if isinstance(baseline, str):
        values["baseline"] = named = os.path.normpath(os.path.join(base, baseline))
        _refuse_outside(named, path, f"{shown}: baseline: {baseline!r}")
    return Settings(**values)  # type: ignore[arg-type]


def _refuse_outside(named: str, path: str, shown: str) -> None:
    """Refuse a file outside the repository of the configuration that names it: a commit chooses that name."""
    root, in_git = repository(os.path.dirname(os.path.abspath(path)))
    if in_git and not is_inside(os.path.abspath(named), root):
        raise ConfigurationError(
            f"{shown} lies outside the repository",
            "keep the baseline in the repository, or name it on the command line with --baseline",
        )


def _overhead(written: object) -> str | float:
    return "modeled" if written == "modeled" else fraction(written)


def _strings(written: object) -> tuple[str, ...]:
    if not isinstance(written, list) or not all(isinstance(item, str) for item in written):
        raise ValueError(f"{written!r} is not a list of strings")
    return tuple(written)


def _file(written: object) -> str:
    if not isinstance(written, str) or not written:
        raise ValueError(f"{written!r} is not the name of a file")
    return written


def page_address(written: object) -> str:
    """The address of a page, to which a link's own part is added.

    Raises:
        ValueError: it is none.
    """
    is_text = (
        isinstance(written, str)
        and written.isascii()
        and written.isprintable()
        and not set(written) & set(" #<>\"'`\\")
    )
    if not is_text or not str(written).startswith(("https://", "http://")):
        raise ValueError(f"{written!r} is not an address such as https://example.org/memcheck/")
    return str(written)


def _selectors(written: object) -> tuple[str, ...]:
    return known(_strings(written))


def _per_file(written: object) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if not isinstance(written, dict):
        raise ValueError(f"{written!r} is not a table of patterns and lists of rules")  # noqa: TRY004 - as below
    return tuple((pattern, _selectors(rules)) for pattern, rules in written.items())


def _severity(written: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(written, dict):
        raise ValueError(f"{written!r} is not a table of rules and severities")  # noqa: TRY004 - as below
    for level in written.values():
        if level not in SEVERITIES:
            raise ValueError(f"{level!r} is not one of {', '.join(SEVERITIES)}")
    return tuple(zip(_selectors(list(written)), written.values(), strict=True))


def _fail_on(written: object) -> str:
    if written not in FAIL_ON:
        raise ValueError(f"{written!r} is not one of {', '.join(FAIL_ON)}")
    return str(written)


def _warn_or_fail(written: object) -> str:
    if written not in UNCERTAIN:
        raise ValueError(f"{written!r} is not one of {', '.join(UNCERTAIN)}")
    return str(written)


def _profile(written: object) -> str:
    if written not in PROFILES:
        raise ValueError(f"{written!r} is not one of {', '.join(PROFILES)}")
    return str(written)


def _policy(written: object) -> object:

    return read_governance(written)


def _required(written: object) -> str:
    """Empty when this version will do."""
    if not isinstance(written, str):
        raise ValueError(f"{written!r} is not a version requirement such as '>=0.1'")  # noqa: TRY004 - a wrong value like the others
    return "" if accepts(written, __version__) else written


def _configs(written: object) -> tuple[ConfigHardware, ...]:
    if not isinstance(written, list) or not all(isinstance(each, dict) for each in written):
        where = "[[configs]] in memcheck.toml, [[tool.memcheck.configs]] in pyproject.toml"
        raise ValueError(f"{written!r} is not a list of tables: {where}")
    return tuple(_config(each) for each in written)


def _config(table: dict[str, object]) -> ConfigHardware:
    known = {"path", "gpu", "gpus-per-node", "nodes", "host-memory", "sequence-length", "images", "framework-version"}
    unknown = sorted(set(table) - known)
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r} of an entry; known: {', '.join(sorted(known))}")
    path, gpu = table.get("path"), table.get("gpu")
    if not isinstance(path, str) or not path:
        raise ValueError(f"{path!r} is not a pattern of paths: path = 'configs/**/*.yml'")
    if gpu is not None and not isinstance(gpu, str):
        raise ValueError(f"{gpu!r} is not the name of a GPU")
    release = table.get("framework-version")
    if release is not None and (not isinstance(release, str) or not is_release(release)):
        raise ValueError(f"framework-version is {release!r}, not a release in quotes: '4.57'")
    memory = table.get("host-memory")
    if memory is not None and (
        isinstance(memory, bool) or not isinstance(memory, (int, float)) or not 0 < memory < 1e9
    ):
        raise ValueError(f"host-memory is {memory!r}, not an amount in GiB")
    numbers: dict[str, int | None] = {}
    for key in ("gpus-per-node", "nodes", "sequence-length"):
        number = table.get(key)
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
            raise ValueError(f"{key} is {number!r}, not a whole number of at least 1")
        numbers[key] = number if isinstance(number, int) else None
    images = None
    if table.get("images") is not None:
        images = read_images(table["images"])
    stated = {key.replace("-", "_"): number for key, number in numbers.items()}
    return ConfigHardware(path=path, gpu=gpu, host_memory=memory, images=images, framework_version=release, **stated)


def _prices(written: object) -> object:

    return read_prices(written)


READERS: dict[str, Callable[[object], object]] = {
    "paths": _strings,
    "fail-above": fraction,
    "warn-above": fraction,
    "waste-below": fraction,
    "overhead": _overhead,
    "uncertain": _warn_or_fail,
    "unpacked": _warn_or_fail,
    "profile": _profile,
    "select": _selectors,
    "extend-select": _selectors,
    "ignore": _selectors,
    "fail-on": _fail_on,
    "per-file-ignores": _per_file,
    "severity": _severity,
    "baseline": _file,
    "policy": _policy,
    "required-version": _required,
    "configs": _configs,
    "prices": _prices,
    "page-url": page_address,
}


def _suggestion(key: str) -> str:
    close = closest(key.replace("_", "-"), READERS)
    return f"; did you mean {close[0]!r}?" if close else ""


def _shown(path: str) -> str:
    """The path relative to the working directory when that is shorter."""
    relative = os.path.relpath(path)
    return relative.replace(os.sep, "/") if len(relative) < len(path) else path


def read_images(written: object) -> dict[str, int]:
    """A mapping as ``training.images`` of a plan has it.

    Raises:
        ValueError: it is none.
    """
    root = load_schema()
    if not isinstance(written, dict) or not conforms(written, root["definitions"]["images"], root):
        raise ValueError(
            f"{written!r} is not what training.images of a plan takes: per_sample: 2, width: 1280, height: 720; "
            "or per_sample, patches and tokens"
        )
    return dict(written)


def parse_images(written: str) -> dict[str, int]:
    """``per_sample: 2, width: 1280, height: 720``, in braces or without, as ``training.images`` of a plan has it.

    Raises:
        ValueError: no mapping of YAML, or none that a plan takes.
    """
    try:
        value = yaml.safe_load(written if written.lstrip().startswith("{") else "{" + written + "}")
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{written!r} is no mapping: per_sample: 2, width: 1280, height: 720") from error
    return read_images(value)


EXAMPLE = "[prices]\nh100-80gb = 2.50   # money per GPU-hour, in any currency\nl40s = 0.90"
"""A table of prices, as a message shows it."""


def read_prices(written: object) -> tuple[tuple[str, float], ...]:
    """The price of an hour of each GPU, by its catalog name, in the order of the table.

    Raises:
        ValueError: it is no table of GPUs and positive numbers, or names a GPU that the catalog does not have.
    """
    if not isinstance(written, dict):
        raise ValueError(f"{written!r} is not a table of GPUs and prices per GPU-hour: h100-80gb = 2.50")  # noqa: TRY004 - a wrong value like the others
    found: dict[str, float] = {}
    for name, price in written.items():
        try:
            gpu = find_gpu(name).name
        except MemcheckError as error:
            raise ValueError(f"{error.message}; {error.help}") from error
        number = isinstance(price, int | float) and not isinstance(price, bool)
        if not number or not isfinite(price) or price <= 0:
            raise ValueError(f"{name} costs {price!r}, which is not a positive number per GPU-hour")
        if gpu in found:
            raise ValueError(f"{gpu} has two prices")
        found[gpu] = float(price)
    return tuple(found.items())


def read_governance(written: object) -> Governance:
    """The table, checked.

    Raises:
        ValueError: it is no table, or a value is of the wrong kind.
    """
    if not isinstance(written, dict):
        raise ValueError(f"{written!r} is not a table")  # noqa: TRY004 - a wrong value like the others
    values: dict[str, object] = {}
    for key, value in written.items():
        if key not in POLICY_READERS:
            raise ValueError(f"unknown key {key!r}; known: {', '.join(POLICY_READERS)}")
        try:
            values[key.replace("-", "_")] = POLICY_READERS[key](value)
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from error
        except UsageError as error:
            raise ValueError(f"{key}: {error.message}") from error
    return Governance(**values)  # type: ignore[arg-type]


def _switch(written: object) -> bool:
    if not isinstance(written, bool):
        raise ValueError(f"{written!r} is neither true nor false")  # noqa: TRY004
    return written


def _count(written: object) -> int:
    if isinstance(written, bool) or not isinstance(written, int) or written < 1:
        raise ValueError(f"{written!r} is not a whole number of at least 1")
    return written


def _hours(written: object) -> float:
    if isinstance(written, bool) or not isinstance(written, (int, float)) or not 0 < written < float("inf"):
        raise ValueError(f"{written!r} is not a number above 0")
    return float(written)


def _names(written: object) -> tuple[str, ...]:
    """At least one name: an empty list would read as if nothing were laid down."""
    if not isinstance(written, list) or not written or not all(isinstance(each, str) and each for each in written):
        raise ValueError(f"{written!r} is not a list of names")
    return tuple(written)


def _rules(written: object) -> tuple[str, ...]:
    return known(_names(written))


POLICY_READERS: dict[str, Callable[[object], object]] = {
    "locked": _switch,
    "locked-rules": _rules,
    "allowed-gpus": _names,
    "max-gpus": _count,
    "max-gpu-hours": _hours,
    "forbid-suppressions": _switch,
    "require-interval": _switch,
    "forbid-unseen": _switch,
}
