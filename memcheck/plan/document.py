"""A YAML document with the place of every value."""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.finding import Finding, Location
from memcheck.record import Record


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

    def is_changed(self, pointer: str) -> bool:
        """Whether the value at a pointer is not the one that its place shows."""
        return any(pointer == each or pointer.startswith(f"{each}/") for each in self.changed)

    def locate(self, pointer: str) -> Location:
        """Where to point for a pointer, or for its nearest ancestor that was written.

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
