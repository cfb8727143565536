"""A YAML document with the place of every value.

Where each value was written, kept as the parser's own events until a place is looked up.

A clean plan never asks, so reading only hangs the events into a tree of the values' shape; lines and columns are
computed when a pointer is looked up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from memcheck.plan.finding import Finding, Location, Span
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Provenance(Record):
    """Where a value of the merged document was written."""

    key: Location | None
    """The mapping key; None for sequence items and the document itself."""
    value: Location
    used_at: Location | None = None
    """Where an alias, a merge key or ``extends`` brought the value in, when it was defined elsewhere."""


class Document(Record):
    """One YAML document after anchors, merge keys and ``extends`` were applied."""

    path: str
    """The file's path as the user wrote it, with forward slashes."""
    index: int  # type: ignore[assignment]  # hides tuple.index, which documents do not need
    """Number of the document in its file, from 0."""
    values: object
    """Plain Python data; a plan is a dict. Aliases share one object, so never change it in place."""
    marks: Mapping[str, Provenance]
    """JSON pointer (``""`` is the root, ``/training/micro_batch_size``) to its place; computed when looked up."""
    sources: dict[str, tuple[str, ...]]
    """Path to lines, of this file and of every file it extends; what snippets are cut from."""
    findings: tuple[Finding, ...] = ()
    """What reading already found: syntax errors, duplicate keys, broken ``extends``."""
    odd: bool = False
    """Some unquoted scalar means different things to different YAML readers, or is no finite number."""
    lines: tuple[int, int] = (0, 0)
    """The document's first line in its file, from 0, and the line after its last; equal where they are not known."""
    changed: tuple[str, ...] = ()
    """Pointers whose values were replaced after reading: what is written there is not what counts."""
    config: object = None
    """How a framework's own config was read, which the document stands for; None for a plan."""

    def is_changed(self, pointer: str) -> bool:
        """Whether the value at a pointer is not the one that its place shows."""
        return any(pointer == each or pointer.startswith(f"{each}/") for each in self.changed)

    def locate(self, pointer: str) -> Location:
        """Say where to point for a pointer, or for its nearest ancestor that was written.

        A scalar is pointed at itself; a mapping, a sequence or an empty value at its key,
        since its own text may be many lines or none; the document at its first key.
        """
        while pointer and pointer not in self.marks:
            pointer = pointer.rpartition("/")[0]
        mark = self.marks[pointer]
        if mark.key is None:
            return mark.value
        key, value = mark.key.span, mark.value.span
        # A value above its key is an alias: the place to look at is where it was defined.
        below = value.line > key.line
        many_lines = value.line == key.line and value.end_line > value.line
        empty = (value.line, value.column) == (value.end_line, value.end_column)
        return mark.key if below or many_lines or empty else mark.value


if TYPE_CHECKING:
    Entry = tuple[Any, Any, "Via | None"]
    """The event of the key (None in a sequence), the place of the value (its event or a block), how it came there."""
else:
    Entry = tuple

_PROPERTIES = r"(?:[&!]\S*[ \t]+)+"
NOWHERE = Span(1, 1, 1, 1)


class Via(Record):
    """How a value came to a place other than the one where it was written."""

    path: str
    """The file it was written in; empty: the same file as its surroundings."""
    use: Any
    """The event that brought it in: an alias, a merge key, the value of ``extends``."""
    text: str
    """That event as the user wrote it: ``<<: *base``, ``*base``; empty for ``extends``."""


class Collection:
    """A mapping or a sequence: its first and last event, and the entries between them."""

    __slots__ = ("end", "items", "start")

    def __init__(self, start: Any, items: dict[str, Entry] | list[Entry]) -> None:
        self.start = start
        self.end: Any = start
        self.items = items

    def child(self, token: str) -> Entry | None:
        """Return the entry of one pointer token."""
        if isinstance(self.items, dict):
            return self.items.get(token)
        if token.isdecimal() and int(token) < len(self.items):
            return self.items[int(token)]
        return None


def escape(key: str) -> str:
    """A key as a token of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def pointer_of(keys: Iterable[str]) -> str:
    """The JSON pointer that leads through these keys."""
    return "".join(f"/{escape(key)}" for key in keys)


def tokens(pointer: str) -> list[str]:
    """Return the keys of a JSON pointer."""
    found = pointer.split("/")[1:]
    if "~" in pointer:
        found = [token.replace("~1", "/").replace("~0", "~") for token in found]
    return found


class Marks(Mapping[str, Provenance]):
    """JSON pointer to :class:`Provenance`, computed from the tree of places. ``root`` None: nothing could be read."""

    def __init__(self, path: str, root: Any, sources: Mapping[str, Sequence[str]]) -> None:
        self._path = path
        self._root = root
        self._sources = sources
        self._known: dict[str, Provenance] = {}
        """Marks that were asked for: as many as the text has values at most, which never change."""

    def __contains__(self, pointer: object) -> bool:
        """Say whether the document has a value at the JSON pointer."""
        place = self._root
        for token in tokens(pointer) if isinstance(pointer, str) else (None,):
            entry = place.child(token) if token is not None and isinstance(place, Collection) else None
            if entry is None:
                return False
            place = entry[1]
        return True

    def __getitem__(self, pointer: str) -> Provenance:
        found = self._known.get(pointer)
        if found is None:
            found = self._known[pointer] = self._mark(pointer)
        return found

    def _mark(self, pointer: str) -> Provenance:
        """Find the place of a value, and the key or merge through which it came."""
        if not pointer:
            return Provenance(None, Location(self._path, self._first()))
        path, place, key, used_at, through = self._path, self._root, None, None, ""
        for token in tokens(pointer):
            entry = place.child(token) if isinstance(place, Collection) else None
            if entry is None:
                raise KeyError(pointer)
            key, place, via = entry
            if via is None:
                continue
            outer = path
            path = via.path or path
            if used_at is None or (via.text and not through):
                used_at = Location(path if via.text else outer, self._span(via.use, path))
            through = through or via.text
        span = self._span(place, path)
        notes = [f"from {path}"] if path != self._path else []
        notes += [f"set at line {span.line} through `{through}`"] if through else []
        note = ", ".join(notes)
        where = None if key is None else Location(path, self._span(key, path), note)
        return Provenance(where, Location(path, span, note), used_at)

    def __iter__(self) -> Iterator[str]:
        yield ""
        pending = [("", _entries(self._root))]  # one path for each level at a time: together they may be long
        while pending:
            pointer, entries = pending[-1]
            found = next(entries, None)
            if found is None:
                pending.pop()
                continue
            inner = f"{pointer}/{escape(found[0])}"
            yield inner
            pending.append((inner, _entries(found[1])))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def at(self, event: Any) -> Location:
        """The location of an event of the document's own file."""
        return Location(self._path, self._span(event, self._path))

    def _first(self) -> Span:
        """Return the first key of a mapping (``memcheck`` if it has one); else where the document starts."""
        place = self._root
        if place is None:
            return NOWHERE
        if isinstance(place, Collection) and isinstance(place.items, dict):
            own = {name: entry[0] for name, entry in place.items.items() if entry[2] is None}
            if own:
                return self._span(own.get("memcheck") or next(iter(own.values())), self._path)
        return self._span(place, self._path)

    def _span(self, place: Any, path: str) -> Span:
        first, last = (place.start, _end(place)) if isinstance(place, Collection) else (place, place.end_mark)
        line, column = first.start_mark.line, first.start_mark.column
        if getattr(first, "tag", None) is not None or (first.anchor is not None and hasattr(first, "implicit")):
            line, column = self._behind_properties(line, column, path)
        return Span(line + 1, column + 1, last.line + 1, last.column + 1)

    def _behind_properties(self, line: int, column: int, path: str) -> tuple[int, int]:
        """An event starts at its anchor or tag; an edit must leave these alone."""
        import re

        lines = self._sources.get(path, ())
        text = lines[line] if line < len(lines) else ""
        found = re.compile(_PROPERTIES).match(text, column)
        return (line, found.end()) if found and found.end() < len(text) else (line, column)


def _entries(place: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names, or numbers, of what a collection holds, with their places."""
    if isinstance(place, Collection):
        items = place.items
        named = items.items() if isinstance(items, dict) else ((str(i), item) for i, item in enumerate(items))
        for name, entry in named:
            yield name, entry[1]


def _end(block: Collection) -> Any:
    """Return the end of a block's last value: the parser ends a block mapping at the next token, lines later."""
    place: Any = block
    while isinstance(place, Collection) and not place.start.flow_style:
        entries = place.items.values() if isinstance(place.items, dict) else place.items
        own = [entry for entry in entries if entry[2] is None or not entry[2].path]
        if not own:
            return place.start.end_mark
        _, place, via = max(own, key=_order)
        if via is not None:
            return via.use.end_mark
    return place.end.end_mark if isinstance(place, Collection) else place.end_mark


def _order(entry: Entry) -> tuple[int, int]:
    """Say where in its file an entry stands: a merged key where the merge key is, an alias where its key is."""
    key, place, via = entry
    event = via.use if via is not None else key if key is not None else place
    mark = (event.start if isinstance(event, Collection) else event).start_mark
    return mark.line, mark.column
