"""A moved control as edits of the plan's text: byte-exact, and read again before they are offered.

Places in a text as editors count them. Editors number UTF-16 units from 0; the engine counts characters from 1.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

from memcheck.errors import UsageError
from memcheck.live.choices import Choosing, order, wish, without
from memcheck.live.replies import TextEdit, TextPlace
from memcheck.plan.finding import Edit, FileEdits, Span
from memcheck.plan.places import Document
from memcheck.plan.read import with_changes
from memcheck.plan.text import unbroken
from memcheck.plan.value_edits import apply_edits, edits, excerpt, read_excerpt
from memcheck.plan.value_edits import moved as shifted


def moved(document: Document, changes: Mapping[str, object]) -> tuple[FileEdits, ...]:
    """The edits that set dotted keys of a plan to new values; None as a value removes the key.

    Raises:
        UsageError: a key has no certain place in the text, such as one that comes through an alias.
    """
    wanted, removed = wish(document, changes)
    if not isinstance(document.values, dict):
        raise UsageError("the text holds no plan whose keys could be set", "correct the text first")
    if not wanted and not removed:
        return ()
    if "source" in document.values:
        found = _sourced(document, wanted) if not removed else ()
    else:
        after = without(with_changes(document, wanted).values, removed)
        if after == document.values:
            return ()
        made = edits(document, wanted, after, order(), removed) if not (wanted and removed) else ()
        if wanted and removed:  # a key may be put where another is taken away
            made = _in_turn(document, wanted, removed, after)
        found = (FileEdits(document.path, made),) if made else ()
    if not found:
        raise UsageError(f"`{next(iter(changes))}` has no certain place in the text", _reason(document, changes))
    return found


def _in_turn(
    document: Document, wanted: Mapping[str, object], removed: tuple[str, ...], after: object
) -> tuple[Edit, ...]:
    """Edits of whole lines that first set some keys and then remove others."""
    first = edits(document, wanted, with_changes(document, wanted).values, order())
    old = excerpt(document)
    between = read_excerpt(document, apply_edits(old, shifted(first, -document.lines[0]))) if first else None
    if between is None:
        return ()
    second = edits(between, {}, after, order(), removed)
    if not second:
        return ()
    new = apply_edits(excerpt(between), shifted(second, -between.lines[0])).splitlines(keepends=True)
    return shifted(line_edits([f"{line}\n" for line in old], new), document.lines[0])


MOST_LINES = 2000
"""Changed lines that are compared with each other; more of them are replaced as one."""


def line_edits(old: Sequence[str], new: Sequence[str]) -> tuple[Edit, ...]:
    """Edits of whole lines that make the old lines the new ones."""
    from difflib import SequenceMatcher  # slow to load, and needed where keys are removed

    most = min(len(old), len(new))
    head = next((number for number in range(most) if old[number] != new[number]), most)
    tail = next((number for number in range(most - head) if old[-1 - number] != new[-1 - number]), most - head)
    before, after = old[head : len(old) - tail], new[head : len(new) - tail]
    parts = [("replace", 0, len(before), 0, len(after))]
    if len(before) + len(after) <= MOST_LINES:
        parts = list(SequenceMatcher(None, before, after, autojunk=False).get_opcodes())
    return tuple(
        Edit(Span(head + start + 1, 1, head + end + 1, 1), "".join(after[first:last]))
        for kind, start, end, first, last in parts
        if kind != "equal"
    )


def _sourced(document: Document, wanted: Mapping[str, object]) -> tuple[FileEdits, ...]:
    """Edits of a plan and of the configs that it takes values from."""
    from memcheck.configs.sourced_edits import sourced_edits  # brings the writers of configs

    resolved = Choosing(document).resolved(wanted)
    if resolved is None:
        return ()
    own, elsewhere = sourced_edits(document, dict(wanted), resolved)
    return (*((FileEdits(document.path, own),) if own else ()), *elsewhere)


def _reason(document: Document, changes: Mapping[str, object]) -> str:
    """Where a value that cannot be edited comes from."""
    for key in changes:
        pointer = "/" + key.replace(".", "/")
        while pointer and pointer not in document.marks:
            pointer = pointer.rpartition("/")[0]
        mark = document.marks.get(pointer)
        if mark is not None and (mark.value.note or mark.used_at is not None):
            return f"the value is {mark.value.note or 'shared through an alias'}: change it there"
    return "write it into the text"


EDITOR_LINE = re.compile("\r\n|\r|\n")
"""What ends a line in an editor. YAML also ends lines at three characters of Unicode."""
UNICODE_ENDS = "\x85\u2028\u2029"


class Positions:
    """The places of one text, which has no byte order mark."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._starts = [0, *accumulate(len(line) for line in unbroken(text).splitlines(keepends=True))]
        odd = any(end in text for end in UNICODE_ENDS)
        self._editor = [0, *(match.end() for match in EDITOR_LINE.finditer(text))] if odd else self._starts

    def place(self, line: int, column: int) -> TextPlace:
        """A place in both ways of counting. What is beyond the text is moved to its end."""
        start = self._starts[min(line - 1, len(self._starts) - 1)]
        offset = min(start + column - 1, len(self._text))
        row = max(0, bisect_right(self._editor, offset) - 1) if self._editor is not self._starts else line - 1
        begin = self._editor[min(row, len(self._editor) - 1)]
        before = self._text[begin:offset]
        return TextPlace(line=row + 1, column=offset - begin + 1, character=units(before))

    def span(self, span: Span) -> tuple[TextPlace, TextPlace]:
        """The first place of a span, and the place after its last character."""
        return self.place(span.line, span.column), self.place(span.end_line, span.end_column)

    def edit(self, edit: Edit) -> TextEdit:
        """An edit with places of editors."""
        start, end = self.span(edit.span)
        return TextEdit(start=start, end=end, text=edit.text)


def units(text: str) -> int:
    """The number of UTF-16 units of a text."""
    return len(text) if text.isascii() else len(text) + sum(char > "\uffff" for char in text)
