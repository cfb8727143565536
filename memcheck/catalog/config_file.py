"""Reads a model's ``config.json``, or says what is wrong with it."""

from __future__ import annotations

import os

from memcheck.edge.opener import is_folder, is_inside, read_start, real_path, repository
from memcheck.errors import MemcheckError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class ConfigFileError(MemcheckError):
    """A ``config.json`` that cannot be read. ``line`` and ``column`` (1-based) are 0 for the whole file."""

    def __init__(self, message: str, help: str = "", line: int = 0, column: int = 0) -> None:
        super().__init__(message, help)
        self.line = line
        self.column = column


MAX_BYTES = 4 * 2**20
"""The most bytes of a ``config.json``, which usually has a few kilobytes; a larger file is something else."""


def read_config(path: str, base_dir: str = ".") -> dict[str, Any]:
    """The configuration in ``path`` (relative to ``base_dir``), or in ``config.json`` of the folder it names.

    Raises:
        ConfigFileError: unreadable, outside of the repository, larger than :data:`MAX_BYTES`, no JSON, or no object.
    """
    return parse_config(*read_config_bytes(path, base_dir))


def read_config_bytes(path: str, base_dir: str = ".") -> tuple[bytes, str]:
    """The bytes that :func:`read_config` parses, and the file's name in messages.

    Raises:
        ConfigFileError: unreadable, outside of the repository, or larger than :data:`MAX_BYTES`.
    """
    base_dir = base_dir or os.curdir
    full = os.path.join(base_dir, path)
    if is_folder(full):
        full, path = os.path.join(full, "config.json"), os.path.join(path, "config.json")
    root, in_git = repository(real_path(base_dir))
    if not is_inside(real_path(full), root):
        limit = "the repository" if in_git else "the plan's folder, which is in no git repository"
        raise ConfigFileError(f"{path} lies outside {limit}", "keep the model's config.json in the plan's folder")
    try:
        data = read_start(full, MAX_BYTES)
    except OSError as error:
        raise ConfigFileError(f"cannot read {path}: {error.strerror}", "the path is relative to the plan") from None
    if len(data) > MAX_BYTES:
        raise ConfigFileError(f"{path} is larger than {MAX_BYTES} bytes", "name a Hugging Face config.json")
    return data, path


def parse_config(data: bytes, path: str) -> dict[str, Any]:
    """The object of a config. ``Infinity`` and ``NaN``, as Python's json writes them, become text, which is no size.

    Raises:
        ConfigFileError: no JSON, or no object.
    """
    import json

    try:
        config = json.loads(data, parse_constant=str)
    except json.JSONDecodeError as error:
        message = f"{path}:{error.lineno}:{error.colno}: not JSON: {error.msg}"
        raise ConfigFileError(message, "name a Hugging Face config.json", error.lineno, error.colno) from None
    except (ValueError, RecursionError) as error:
        raise ConfigFileError(f"{path}: not JSON: {error}", "name a Hugging Face config.json") from None
    if not isinstance(config, dict):
        kind = type(config).__name__
        raise ConfigFileError(f"{path} holds a JSON {kind}, not an object", "name a Hugging Face config.json", 1, 1)
    return config
