"""YAML that was meant as a plan and lacks the mark: answered from its bytes, once it is known to be no plan.

Whether a YAML file is a plan, from its bytes, so that a folder of other YAML costs next to nothing.

Only a file whose bytes could spell the mark, in a way that no pattern is sure of, is parsed.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from memcheck.edge.libyaml import yaml
from memcheck.edge.lookalikes import looks_like, skeleton
from memcheck.edge.opener import open_file
from memcheck.errors import closest
from memcheck.plan.compose import ComposeError, Composer, events
from memcheck.plan.text import MAX_BYTES

_SECTION = re.compile(rb"^(model|hardware|training)[ \t]*:", re.MULTILINE)
_VERSION = re.compile(
    rb"""^["']?([A-Za-z_][A-Za-z_. -]{4,13})["']?[ \t]*:[ \t]*["']?1["']?[ \t]*(?:\#[^\n]*)?\r?$""",
    re.MULTILINE,
)
_OWN = re.compile(rb"\b(?:gpus_per_node|gpu|micro_batch_size|sequence_length|zero_stage)[ \t]*:")
"""Keys of a plan's sections that other tools' sections of those names have not."""
_MISSPELT = "memcheck"
_ALIKE = 0.8
"""difflib's ratio of equal characters, from which on a key is the mark misspelt: ``memchek``, ``mem_check``."""


def misspells_mark(data: bytes) -> bool:
    """Say whether the text misspells the mark, as in ``memchek: 1``: it has a similar key with the mark's value, and a
    section of a plan.
    """
    data = _plain(data)
    if not _SECTION.search(data):
        return False
    words = {found.decode("ascii").lower() for found in _VERSION.findall(data)}
    if not words:
        return False
    return bool(closest(_MISSPELT, words, 1, _ALIKE))


def _plain(data: bytes) -> bytes:
    """Return the bytes with plain letters in place of those that look like them."""
    if data.isascii():
        return data
    return skeleton(data.decode("utf-8", "replace")).encode()


def resembles_plan(data: bytes) -> bool:
    """Say whether two of a plan's sections stand at the top, with a key that only a plan's have."""
    data = _plain(data)
    return len(set(_SECTION.findall(data))) >= 2 and _OWN.search(data) is not None


# A key at the start of a line whose value is on that line, or nowhere: `memcheck:` over an indented block is a section
# of some other tool's file, such as a CI job of that name.
_KEY = re.compile(
    rb"""^(?:\xef\xbb\xbf)?(?:memcheck|"memcheck"|'memcheck')[ \t]*:"""
    rb"""(?:[ \t]+[^\s\#&*!|>{\[]|(?:[ \t]*(?:\#[^\n]*)?\n)+(?![ \t\n\#]|-[ ])|[ \t]*(?:\#[^\n]*)?\Z)""",
    re.MULTILINE,
)
_BRACES = re.compile(rb"(?:\xef\xbb\xbf)?(?:[ \t]*(?:#[^\n]*|---|%[^\n]*)?\n)*(?:---)?[ \t]*\{")
_TOKEN = re.compile(
    rb"""[{}\[\]]|(?<![\w-])(?:memcheck|"memcheck"|'memcheck')[ \t]*:[ \t]*["']?(?P<version>[0-9])"""
    rb"""|"(?:[^"\\]|\\.)*"|'[^']*'|\#[^\n]*"""
)


# Within double quotes each letter may be an escape, and a line break may be escaped away.
_ESCAPED_BREAK = re.compile(rb"\\(?:\r\n|[\r\n]|\xc2\x85|\xe2\x80[\xa8\xa9])[ \t]*")
_ESCAPED_LETTER = re.compile(rb"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8}))")
_UNPRINTABLE = re.compile("[^\t\n\r -~\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ENCODINGS = (
    (b"\xff\xfe\0\0", "utf-32"),
    (b"\0\0\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)
_MARK = "memcheck"
_DEEPEST = 1000
"""Collections inside each other, beyond which no reader of YAML follows."""


def looks_like_plan(data: bytes) -> bool:
    """Say whether some document has a top-level ``memcheck`` key with a value that is no collection. Never raises.

    A plan with a mistake after that key still looks like one, so that the mistake is reported. Text in another encoding
    than UTF-8 is decoded here, although it will be refused.
    """
    encoding = _other_encoding(data)
    if encoding:
        data = data.decode(encoding, "replace").encode("utf-8", "replace")
    if not may_spell(data):
        return False
    lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return _KEY.search(lines) is not None or _in_braces(lines) or _is_parsed_as_plan(data)


def may_spell(data: bytes) -> bool:
    """Say whether the bytes hold the mark, in letters, in escapes, or in letters that look like its own."""
    mark = _MARK.encode()
    if mark in data:
        return True
    if b"\\" in data:
        data = _ESCAPED_LETTER.sub(_letter, _ESCAPED_BREAK.sub(b"", data))
        if mark in data:
            return True
    return not data.isascii() and _MARK in skeleton(data.decode("utf-8", "replace"))


def _letter(escape: re.Match[bytes]) -> bytes:
    code = int(escape[escape.lastindex or 0], 16)
    return chr(code).encode("utf-8", "replace") if code <= sys.maxunicode else b"?"


def _is_mark(key: object) -> bool:
    return isinstance(key, str) and looks_like(key, _MARK)


def _other_encoding(data: bytes) -> str:
    """Return UTF-16 or UTF-32, by its byte order mark or by the zero bytes of a first ASCII character; empty for
    neither.
    """
    for start, encoding in _ENCODINGS:
        if data.startswith(start):
            return encoding
    if b"\0" not in data[:4]:
        return ""
    if data[:1] != b"\0":
        return "utf-32-le" if data[1:4] == b"\0\0\0" else "utf-16-le"
    return "utf-32-be" if data[:3] == b"\0\0\0" else "utf-16-be"


def _is_parsed_as_plan(data: bytes) -> bool:
    """Return what the parser's events say, up to the first that cannot be parsed."""
    text = _UNPRINTABLE.sub(" ", data.decode("utf-8", "replace").removeprefix("\ufeff"))
    keys = _TopKeys()
    try:
        following = events(text)
        while not keys.found and keys.depth <= _DEEPEST:
            event = following()
            if event.__class__ is yaml.StreamEndEvent:
                break
            keys.take(event)
    except yaml.YAMLError:
        pass
    return keys.found or (keys.merges and _is_composed_as_plan(text))


class _TopKeys:
    """Looks for the mark among the keys of every document's mapping, as events come in."""

    def __init__(self) -> None:
        self.found = False
        self.merges = False
        self.depth = 0
        self._begin()

    def _begin(self) -> None:
        self._anchors: dict[str, str | None] = {}
        self._in_mapping = False
        self._has_key = False
        self._key: str | None = None

    def take(self, event: Any) -> None:
        """Return the next event of the parser."""
        kind = type(event).__name__
        if kind == "ScalarEvent":
            if event.anchor is not None:
                self._anchors[event.anchor] = event.value
            self.merges |= self.depth == 1 and event.value == "<<"
            self._node(event.value)
        elif kind == "AliasEvent":
            self.merges |= self._anchors.get(event.anchor) == "<<"
            self._node(self._anchors.get(event.anchor))
        elif kind in {"MappingStartEvent", "SequenceStartEvent"}:
            if event.anchor is not None:
                self._anchors[event.anchor] = None
            if not self.depth:
                self._in_mapping = kind == "MappingStartEvent"
            self.depth += 1
        elif kind in {"MappingEndEvent", "SequenceEndEvent"}:
            self.depth -= 1
            self._node(None)
        elif kind == "DocumentStartEvent":
            self._begin()

    def _node(self, text: str | None) -> None:
        """Return a whole node; None for a collection."""
        if self.depth != 1 or not self._in_mapping:
            return
        if self._has_key:
            self.found |= _is_mark(self._key) and text is not None
        else:
            self._key = text
        self._has_key = not self._has_key


def _is_composed_as_plan(text: str) -> bool:
    """For merge keys: whether the mark arrives through one. What cannot be composed is reported, not passed over."""
    try:
        return any(
            isinstance(each.values, dict)
            and any(_is_mark(key) and not isinstance(value, (dict, list)) for key, value in each.values.items())
            for each in Composer(text).documents()
        )
    except (ComposeError, yaml.YAMLError):
        return True


def _in_braces(data: bytes) -> bool:
    """Return a document written as one flow mapping, such as JSON: the key must stand directly inside its braces."""
    start = _BRACES.match(data)
    if start is None:
        return False
    depth = 0
    for token in _TOKEN.finditer(data, start.end() - 1):
        first = token.group()[:1]
        if first in b"{[":
            depth += 1
        elif first in b"}]":
            depth -= 1
        elif depth == 1 and token["version"]:
            return True
        if depth > _DEEPEST:
            break
    return False


def is_meant(path: str, data: bytes, unmarked: list[str] | None, *, has_more: bool) -> bool:
    """Say whether a file is a plan, or meant as one by a misspelt mark; what resembles one goes to ``unmarked``.

    ``has_more``: whether there is a file under the path, in which more stands where the bytes are too many.
    """
    if looks_like_plan(data) or (len(data) > MAX_BYTES and has_more and _may_hold_plan(path)):
        return True
    if misspells_mark(data):
        return True
    if unmarked is not None and resembles_plan(data):
        unmarked.append(path)
    return False


def _may_hold_plan(file: str) -> bool:
    """Say whether a file that is too large to parse mentions the mark: then it is reported, not passed over."""
    overlap = 1024  # more than any spelling of the mark that someone means to be read
    held = b""
    with open_file(file) as stream:
        while part := stream.read(MAX_BYTES):
            held = held[-overlap:] + part.replace(b"\0", b"")
            if may_spell(held):
                return True
    return False
