"""Places in a text as editors count them. Editors number UTF-16 units from 0; the engine counts characters from 1."""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import accumulate

from memcheck.live.replies import TextEdit, TextPlace
from memcheck.plan.finding import Edit, Span
from memcheck.plan.text import unbroken

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
