"""Names of catalog records: matched without regard to case, with suggestions for what is close."""

from __future__ import annotations

import os
from functools import lru_cache

from memcheck.edge.own_json import read_own_json
from memcheck.errors import MemcheckError
from memcheck.plan.compose import Composer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DATA = os.path.join(os.path.dirname(__file__), "data")
"""The records: one file each, and per folder an index of names."""


class UnknownNameError(MemcheckError):
    """No record has this name. ``close`` holds names that are similar."""

    def __init__(self, kind: str, name: str, close: tuple[str, ...]) -> None:
        help = f"did you mean {' or '.join(close)}?" if close else f"`memcheck list {kind}s` shows the known ones"
        super().__init__(f"unknown {kind} {name!r}", help)
        self.close = close


class AmbiguousNameError(UnknownNameError):
    """Several records share this name. ``close`` holds all of them."""

    def __init__(self, kind: str, name: str, records: tuple[str, ...]) -> None:
        super().__init__(kind, name, records)
        self.message = f"{kind} {name!r} is the name of several: {', '.join(records)}"
        self.help = f"write {' or '.join(records)}"


def find_record(kind: str, name: str) -> tuple[str, dict[str, Any]]:
    """Canonical name and record of the ``kind`` (``model`` | ``gpu``) that is called ``name``. Reads one record.

    Raises:
        UnknownNameError: nothing is called so.
        AmbiguousNameError: several are.
    """
    folder = os.path.join(DATA, kind + "s")
    wanted = normal(name)
    canonical = wanted
    if not _is_file_name(wanted) or not os.path.isfile(os.path.join(folder, wanted + ".yaml")):
        found = _read_names(kind).get(wanted)
        if found is None:
            raise UnknownNameError(kind, name, _close(kind, wanted))
        if isinstance(found, list):
            raise AmbiguousNameError(kind, name, tuple(found))
        canonical = found
    return canonical, read_record(os.path.join(folder, canonical + ".yaml"))


def normal(name: str) -> str:
    """The form in which names are compared: lower case, hyphens for spaces (``NVIDIA H100 80GB HBM3``)."""
    return name.strip().lower().replace(" ", "-")


def read_index(kind: str) -> dict[str, str]:
    """Every name of a kind (lower case, aliases included) and the record it stands for; none that several share."""
    return {name: found for name, found in _read_names(kind).items() if isinstance(found, str)}


def _read_names(kind: str) -> dict[str, str | list[str]]:
    index: dict[str, str | list[str]] = read_own_json(os.path.join(DATA, kind + "s", "index.json"))
    return index


def canonical_names(kind: str) -> tuple[str, ...]:
    """The record names of a kind, sorted."""
    return tuple(sorted(set(read_index(kind).values())))


def read_record(path: str) -> dict[str, Any]:
    """One YAML file of the catalog."""
    with open(path, encoding="utf-8") as stream:
        record: dict[str, Any] = next(Composer(stream.read()).documents()).values  # type: ignore[assignment]
    return record


def _is_file_name(name: str) -> bool:
    return bool(name) and not name.startswith(".") and "/" not in name and "\\" not in name and "\0" not in name


@lru_cache(maxsize=64)
def _close(kind: str, wanted: str) -> tuple[str, ...]:
    """Up to three record names; an alias that is close counts for its record.

    Kept: a plan's own GPU, whose memory it states, is looked for by whoever would like to know more of it.
    """
    from memcheck.catalog.hub_ids import stem
    from memcheck.edge.closest import closest

    index = read_index(kind)
    short = stem(wanted.rpartition("/")[2])
    found: list[str] = []
    for match in closest(short, index, 12):
        if index[match] not in found:
            found.append(index[match])
    return tuple(found[:3])
