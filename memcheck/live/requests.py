"""What can be asked: every request by its word, with its fields. A message that is none is refused with the reason.

The files of a visit: names and bytes in memory, bounded, from which plans and all that they refer to are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TypeVar

from memcheck.edge.in_memory import FilesInMemory, looking_at
from memcheck.errors import MemcheckError, UsageError, closest
from memcheck.record import Record
from memcheck.report import FORMATS

LONGEST_ID = 100
"""Characters of a request's id."""
MOST_KEYS = 1000
"""Entries of a mapping or a list in a request."""


class RequestError(MemcheckError):
    """A message that is no request."""


class Field(Record):
    """One field of a request."""

    kind: str
    """One of :data:`KINDS`."""
    told: str
    """What the field says, for the schema."""
    required: bool = False
    words: tuple[str, ...] = ()
    """The only values of a word, or of the words of a list; empty: any text."""


class RequestForm(Record):
    """One kind of request."""

    told: str
    fields: Mapping[str, Field]


KINDS = {
    "text": (str, "a text"),
    "whole": (int, "a whole number of at least 0"),
    "flag": (bool, "true or false"),
    "files": (dict, "texts by file name"),
    "keys": (dict, "values by key"),
    "words": (list, "a list of texts"),
    "lists": (dict, "lists of values by key"),
}
"""The type of each kind of field, and its words."""

COMMON = {
    "path": Field("text", "The file that the request is about; without it, the file of the request before."),
    "text": Field("text", "The text of that file, if it has changed."),
    "document": Field("whole", "The number of the plan in the file, from 0; without it, 0."),
    "files": Field("files", "Other files by name that are added or replaced; null removes a file."),
    "hardware": Field("keys", "What a framework's own config does not say: gpu, gpus_per_node, nodes."),
    "since": Field("id", "The id of the answer that is shown: what is the same is left out."),
}
"""Fields of every request about a plan."""

EXPORTS = ("deepspeed", "accelerate", "torchtitan", "megatron")
"""Formats of ``export``: those of :mod:`memcheck.configs.formats`, whose readers no answer needs."""
GOALS = ("fit", "throughput", "gpus", "cheapest", "max-batch", "max-sequence")
"""What ``suggest`` can look for."""
CHANGES = Field("keys", "New values by dotted key; null removes a key from the plan.", required=True)
KEYS = Field("words", "Dotted keys.", required=True)

REQUESTS: Mapping[str, RequestForm] = {
    "answer": RequestForm("Check a plan. Replies: `first`, then `form`.", COMMON),
    "set": RequestForm(
        "Set keys of a plan, then check it. Replies: `first` with edits, then `form`.", {**COMMON, "changes": CHANGES}
    ),
    "more": RequestForm(
        "Search for bytes per line, changes that help, other GPUs. Replies: `searching`, `lines`, `remedies`, `gpus`.",
        {
            **COMMON,
            "steps": Field(
                "words", "What to search for, in this order; all without it.", words=("lines", "remedies", "gpus")
            ),
        },
    ),
    "choices": RequestForm("The values that keys could have. Reply: `choices`.", {**COMMON, "keys": KEYS}),
    "import": RequestForm(
        "The plan of a framework's config, a script or a launch line. Reply: `imported`.",
        {
            **COMMON,
            "format": Field("text", "The format, where the file does not prove it."),
            "settings": Field("keys", "What the config cannot say, by dotted key of the plan."),
        },
    ),
    "export": RequestForm(
        "The config of a framework that runs the plan. Reply: `exported`.",
        {**COMMON, "format": Field("text", "Whose config to write.", required=True, words=EXPORTS)},
    ),
    "compare": RequestForm(
        "The plan on several GPUs, or next to other plans. Reply: `drawn`.",
        {
            **COMMON,
            "gpus": Field("words", "GPUs to compare; without them, the usual ones."),
            "plans": Field("words", "Files of other plans, which are compared on their own GPUs."),
        },
    ),
    "sweep": RequestForm(
        "A heat map over values of keys. Replies: `searching`, then `drawn`.",
        {**COMMON, "values": Field("lists", "Values by dotted key; the last key is the columns.", required=True)},
    ),
    "suggest": RequestForm(
        "Search for plans near this one. Reply: `drawn`.",
        {**COMMON, "goal": Field("text", "What is sought; `fit` without it.", words=GOALS)},
    ),
    "why": RequestForm(
        "Why a run ended; `path` is its log. Reply: `drawn`.",
        {**COMMON, "gpu": Field("text", "The GPU of the run, where the log does not say it.")},
    ),
    "report": RequestForm(
        "A report to download. Reply: `reported`.",
        {**COMMON, "format": Field("text", "A format of `memcheck check`.", required=True, words=tuple(FORMATS))},
    ),
    "link": RequestForm(
        "A link that opens the plan in the page. Reply: `linked`.",
        {
            **COMMON,
            "compared": Field("text", "The file of a second plan, to compare with."),
            "section": Field("text", "The section to show first."),
        },
    ),
    "catalog": RequestForm("Models and GPUs by name. Reply: `catalog`.", {}),
}


def numbered(message: object) -> tuple[object, dict[str, object]]:
    """The id of a request, which is a whole number or a short text, and the request.

    Raises:
        RequestError: it is missing, or of another kind, or the message is no mapping.
    """
    if not isinstance(message, dict):
        raise RequestError("a request is a mapping", 'such as {"id": 1, "do": "answer", "text": "..."}')
    return checked_id(message.get("id")), message


def checked_id(found: object) -> object:
    """The id of a request.

    Raises:
        RequestError: it is missing, or of another kind.
    """
    if isinstance(found, bool) or not isinstance(found, (int, str)):
        raise RequestError("a request needs an `id`", "number the requests")
    if isinstance(found, str) and len(found) > LONGEST_ID:
        raise RequestError(f"the id has {len(found):,} characters, more than {LONGEST_ID}", "number the requests")
    if isinstance(found, int) and abs(found) >= 2**53:
        raise RequestError("the id is no number that JSON keeps", "number the requests from 1")
    return found


def checked(message: Mapping[str, object]) -> tuple[str, dict[str, object]]:
    """The word of a request and its fields, without those that are null.

    Raises:
        RequestError: no such request, an unknown or missing field, or a value of another kind.
    """
    word = message.get("do")
    if not isinstance(word, str) or word not in REQUESTS:
        close = closest(word[:50], REQUESTS) if isinstance(word, str) else []
        hint = f"did you mean `{close[-1]}`?" if close else f"one of: {', '.join(REQUESTS)}"
        raise RequestError("`do` names no request", hint)
    fields = REQUESTS[word].fields
    found: dict[str, object] = {}
    for name, value in message.items():
        if name in ("id", "do") or value is None:
            continue
        if name not in fields:
            shown = repr(str(name)[:50])
            raise RequestError(f"`{word}` has no field {shown}", f"it has: {', '.join(fields)}")
        _check(word, name, fields[name], value)
        found[name] = value
    missing = [name for name, field in fields.items() if field.required and name not in found]
    if missing:
        raise RequestError(f"`{word}` needs the field `{missing[0]}`", fields[missing[0]].told)
    return word, found


def _check(word: str, name: str, field: Field, value: object) -> None:
    """Refuse a value of another kind.

    Raises:
        RequestError: it is one.
    """
    if field.kind == "id":
        checked_id(value)
        return
    kind, told = KINDS[field.kind]
    wrong = RequestError(f"`{name}` of `{word}` must be {told}")
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise wrong
    if isinstance(value, int) and not 0 <= value < 2**53:
        raise wrong
    if isinstance(value, (dict, list)) and len(value) > MOST_KEYS:
        raise RequestError(f"`{name}` of `{word}` has {len(value):,} entries, more than {MOST_KEYS:,}")
    if isinstance(value, dict):
        inside = {"files": (str, type(None)), "lists": (list,), "keys": (object,)}[field.kind]
        if not all(isinstance(key, str) and isinstance(each, inside) for key, each in value.items()):
            raise wrong
    entries = value if isinstance(value, list) else [value] if field.words else []
    if not all(isinstance(each, str) for each in entries):
        raise wrong
    unknown = [each for each in entries if field.words and each not in field.words]
    if unknown:
        raise RequestError(f"`{name}` of `{word}` must be one of: {', '.join(field.words)}")


Step = TypeVar("Step")
MOST_FILES = 200
"""Files of a workspace."""
LARGEST = 1_048_576
"""Bytes of a file."""
MOST_BYTES = 16 * LARGEST
"""Bytes of all files."""
LONGEST_NAME = 200
"""Characters of a name."""
NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f\\:*?\"<>|]+")
"""Characters that a file can have in its name on every system."""


class Workspace:
    """Files by name. A name is a relative path with forward slashes, such as ``configs/train.yaml``."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self.state = 0
        """Changes when a file does."""

    def __contains__(self, name: object) -> bool:
        return name in self._files

    @property
    def names(self) -> tuple[str, ...]:
        """The name of every file, in the order in which they came."""
        return tuple(self._files)

    def data(self, name: str) -> bytes:
        """The bytes of a file.

        Raises:
            UsageError: there is no such file.
        """
        if name not in self._files:
            raise UsageError(f"there is no file `{name}` here", "send its text with the request")
        return self._files[name]

    def put(self, files: Mapping[str, bytes | None]) -> None:
        """Add or replace files, all of them or none; a file without bytes is removed.

        Raises:
            UsageError: a name that is none, or more files or bytes than a workspace holds.
        """
        changed = dict(self._files)
        for name, data in files.items():
            checked_name(name)
            if data is None:
                changed.pop(name, None)
                continue
            if len(data) > LARGEST:
                raise UsageError(
                    f"`{name}` has {len(data):,} bytes, more than {LARGEST:,}",
                    "the command line reads larger notebooks",
                )
            changed[name] = data
        if len(changed) > MOST_FILES:
            raise UsageError(f"there would be {len(changed):,} files, more than {MOST_FILES}", "remove some of them")
        total = sum(map(len, changed.values()))
        if total > MOST_BYTES:
            raise UsageError(f"the files would have {total:,} bytes, more than {MOST_BYTES:,}", "remove some of them")
        if changed != self._files:
            self._files.clear()
            self._files.update(changed)
            self.state += 1

    def reading(self) -> AbstractContextManager[None]:
        """A block in which memcheck reads these files and none of the disk's."""
        return looking_at(FilesInMemory(self._files))

    def while_reading(self, steps: Iterator[Step]) -> Iterator[Step]:
        """The steps of a search, each made while these files are read. Between two of them the disk is as usual."""
        while True:
            with self.reading():
                try:
                    step = next(steps)
                except StopIteration:
                    return
            yield step


def checked_name(name: str) -> str:
    """The name of a file, if it is one.

    Raises:
        UsageError: it is empty, too long, absolute, leads out of the workspace, or has a character that no name has.
    """
    if len(name) > LONGEST_NAME or not NAME.fullmatch(name):
        shown = name if len(name) <= LONGEST_NAME else f"{name[:40]}..."
        raise UsageError(
            f"{shown!r} is not a file name", f"use 1 to {LONGEST_NAME} characters without control characters"
        )
    try:
        name.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{name!r} is not a file name", "use characters of Unicode") from None
    parts = name.split("/")
    if not all(parts) or {".", ".."}.intersection(parts) or any(part.lower() == ".git" for part in parts):
        raise UsageError(f"{name!r} is not a file name here", "use a relative path such as `configs/train.yaml`")
    return name
