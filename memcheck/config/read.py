"""Reads and validates one configuration file."""

from __future__ import annotations

import os
from collections.abc import Callable

from memcheck import __version__
from memcheck.config.find import LARGEST, Files
from memcheck.config.fraction import fraction
from memcheck.config.types import FAIL_ON, UNCERTAIN, ConfigHardware, Settings
from memcheck.config.version import accepts, is_release
from memcheck.edge.opener import is_inside, repository
from memcheck.edge.toml import TomlError, parse_toml
from memcheck.errors import ConfigurationError, UsageError
from memcheck.finding import SEVERITIES
from memcheck.rules.profiles import PROFILES


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


def _selectors(written: object) -> tuple[str, ...]:
    from memcheck.config.select import known

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
    from memcheck.config.governance import read_governance

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
        from memcheck.config.images import read_images

        images = read_images(table["images"])
    stated = {key.replace("-", "_"): number for key, number in numbers.items()}
    return ConfigHardware(path=path, gpu=gpu, host_memory=memory, images=images, framework_version=release, **stated)


def _prices(written: object) -> object:
    from memcheck.config.prices import read_prices

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
}


def _suggestion(key: str) -> str:
    from memcheck.edge.closest import closest

    close = closest(key.replace("_", "-"), READERS)
    return f"; did you mean {close[0]!r}?" if close else ""


def _shown(path: str) -> str:
    """The path relative to the working directory when that is shorter."""
    relative = os.path.relpath(path)
    return relative.replace(os.sep, "/") if len(relative) < len(path) else path
