"""What configs say in the plan's words, read once: many plans of a file, and of a run, name the same config.

A reading is known by the config's bytes and by all else that its reader is told. It counts while the files that
the config names say what they said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from memcheck.configs.asked_gpus import read_gpu
from memcheck.configs.config_file import parse_text
from memcheck.configs.formats import Format
from memcheck.configs.types import ConfigError, ReadConfig
from memcheck.edge.observed import Overheard
from memcheck.edge.questions import holds
from memcheck.record import Record

MOST = 16
"""The most readings that are kept at a time."""
MOST_BYTES = 4 * 2**20
"""Bytes of their configs, all together."""


class Asked(Record):
    """The arguments of a reader, which identify a reading."""

    path: str
    """The config's, as it is shown."""
    inside: str
    """The folder within which it may name other files."""
    version: str
    images: Mapping[str, int]
    defines: Mapping[str, str]
    method: str
    """``training.method`` where the user states it in addition to the config; else empty."""
    gpus_per_node: int | None
    world: int | None


class _Kept(Record):
    data: bytes
    reading: ReadConfig | None
    error: ConfigError | None
    notes: tuple[Any, ...]
    """What was asked of the machine's files."""
    texts: tuple[tuple[str, bytes], ...]
    """Other files that were read."""


_kept: dict[tuple[Any, ...], _Kept] = {}


def reading_of(kind: Format, data: bytes, asked: Asked, read: Callable[[str], bytes]) -> ReadConfig:
    """A config in the plan's words. ``read`` gives the bytes of the files that it names.

    Raises:
        ConfigError: it cannot be used.
        OSError: a file that it names cannot be read.
    """
    mappings = [tuple(sorted(each.items())) for each in (asked.images, asked.defines)]
    key = (kind.name, data, *mappings, *(each for each in asked if not isinstance(each, Mapping)))
    found = _kept.get(key)
    if found is None or not _holds(found, read):
        found = _read(kind, data, asked, read)
        _keep(key, found)
    if found.error is not None:
        raise found.error.with_traceback(None)
    assert found.reading is not None  # noqa: S101 - it is one or the other
    return found.reading


def _holds(kept: _Kept, read: Callable[[str], bytes]) -> bool:
    try:
        return holds(kept.notes) and all(read(path) == data for path, data in kept.texts)
    except OSError:
        return False


def _read(kind: Format, data: bytes, asked: Asked, read: Callable[[str], bytes]) -> _Kept:
    texts: list[tuple[str, bytes]] = []

    def noted(path: str) -> bytes:
        found = read(path)
        texts.append((path, found))
        return found

    reading, error = None, None
    heard = Overheard()
    try:
        config = kind.load(asked.path, parse_text(asked.path, data), asked.defines)
        config.inside, config.read = asked.inside, noted
        config.version, config.images = asked.version, asked.images
        config.gpus_per_node, config.method = asked.gpus_per_node, asked.method
        reading = read_gpu(kind.read(config, asked.world), config)
    except ConfigError as problem:
        error = problem
    finally:
        heard.end()
    compared = {path for path, _ in texts}
    notes = tuple(each for each in heard.notes if each[0] != "start" or each[1] not in compared)
    return _Kept(data=data, reading=reading, error=error, notes=notes, texts=tuple(texts))


def _keep(key: tuple[Any, ...], found: _Kept) -> None:
    _kept.pop(key, None)
    _kept[key] = found
    while len(_kept) > MOST or (len(_kept) > 1 and sum(_size(each) for each in _kept.values()) > MOST_BYTES):
        del _kept[next(iter(_kept))]


def _size(kept: _Kept) -> int:
    return len(kept.data) + sum(len(data) for _, data in kept.texts)
