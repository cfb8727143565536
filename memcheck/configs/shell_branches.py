"""Branches of a shell script: which line runs, where the script itself says what its ``if`` compares."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from memcheck.edge.text import whole_number

RUNS, SKIPPED, DONE, UNKNOWN = "runs", "skipped", "done", "unknown"
"""States of a branch: it runs; it does not run; an earlier branch of its ``if`` ran; its condition is not known."""
_OPENS = re.compile(r"(?:^|;|\bthen\b|\bdo\b|\belse\b)\s*(?:if|case)\b")
_CLOSES = re.compile(r"(?:^|[;\s])(?:fi|esac)\b")
_HEAD = re.compile(r"\s*(if|elif)\s+([^;]{1,400}?)\s*(?:;\s*then\s*)?\Z")
_JOINED = re.compile(r"\s*(\|\||&&)\s*")
_BRACKETS = re.compile(r"(?:\[\[\s+([^\[\]]+?)\s+\]\]|\[\s+([^\[\]]+?)\s+\])\Z")
_ELSE = re.compile(r"\s*(else|elif)\b")
_TEST = re.compile(r"(\S+)\s+(=|==|!=|-eq|-ne|-gt|-ge|-lt|-le)\s+(\S+)\Z|(-[zn])\s+(\S+)\Z")
_VALUE = re.compile(r"\$\{?([A-Za-z_]\w*|[1-9])(?::?-([^}]*))?\}?\Z")
_NAMED = re.compile(r"\$\{?([A-Za-z_]\w*)")
_CALLERS = re.compile(r"\$\{?[1-9]\}?\Z")
"""An argument of the script's own. It is not known, but for a default: where the script asks whether it was given, it
was not, as in ``${1:-8}``.
"""


class Branches:
    """The branches that are open at a line."""

    def __init__(self) -> None:
        self._open: list[tuple[str, str]] = []
        """State of each open branch, and a variable that its comparison depends on and that is not known."""
        self._unknown: list[str] = []
        """For each open branch in state UNKNOWN, the variable that its comparison depends on. This list and
        ``_unread`` save a pass over ``_open`` for every line."""
        self._unread = 0
        """Open branches that are SKIPPED or DONE."""

    @property
    def hanging(self) -> int:
        """How many of them hang on what is not known."""
        return len(self._unknown)

    @property
    def compared(self) -> str:
        """A variable on which the innermost of them hangs; empty where that is not plain."""
        return self._unknown[-1] if self._unknown else ""

    @property
    def skipped(self) -> bool:
        """Whether this line never runs."""
        return self._unread > 0

    def _push(self, state: str, name: str = "") -> None:
        self._open.append((state, name))
        if state == UNKNOWN:
            self._unknown.append(name)
        self._unread += state in (SKIPPED, DONE)

    def _pop(self) -> tuple[str, str]:
        state, name = self._open.pop()
        if state == UNKNOWN:
            self._unknown.pop()
        self._unread -= state in (SKIPPED, DONE)
        return state, name

    def line(self, code: str, variables: Mapping[str, str], branches: Collection[str]) -> None:
        """Open and close what the line does. ``branches``: variables whose value hangs on one."""
        head, other = _HEAD.match(code), _ELSE.match(code)
        holds = None if head is None else _holds(head[2], variables, branches)
        if head is not None and head[1] == "if":
            named = _NAMED.findall(head[2])
            self._push(_state(holds), next((name for name in named if name not in variables or name in branches), ""))
            return
        if other is not None and self._open:
            before, name = self._pop()
            if before in (RUNS, DONE):
                before = DONE
            elif before == SKIPPED:
                before = RUNS if other[1] == "else" else _state(holds)
            self._push(before, name)
            code = code[other.end() :] if other[1] == "else" else ""
        more = len(_OPENS.findall(code)) - len(_CLOSES.findall(code))
        for _ in range(min(-more, len(self._open))):
            self._pop()
        for _ in range(more):
            self._push(UNKNOWN)


def _state(holds: bool | None) -> str:
    return UNKNOWN if holds is None else RUNS if holds else SKIPPED


def _holds(text: str, variables: Mapping[str, str], branches: Collection[str]) -> bool | None:
    """Whether comparisons hold, joined by ``||`` and ``&&`` as the shell joins them; None where it is not known."""
    first, *rest = _JOINED.split(text)
    found = _compared(first, variables, branches)
    for joint, each in zip(rest[::2], rest[1::2], strict=True):
        other, decides = _compared(each, variables, branches), joint == "||"
        found = decides if decides in (found, other) else None if None in (found, other) else not decides
    return found


def _compared(text: str, variables: Mapping[str, str], branches: Collection[str]) -> bool | None:
    """Whether a comparison of two words holds; None where a word is not known, or the text is no comparison."""
    inside = _BRACKETS.match(text)
    found = None if inside is None else _TEST.match(inside[1] or inside[2])
    if found is None:
        return None
    if found[4]:
        word = _word(found[5], variables, branches, given=False)
        return None if word is None else (word == "") == (found[4] == "-z")
    given = all(found[side].strip("\"'") for side in (1, 3))
    left, right = (_word(found[side], variables, branches, given=given) for side in (1, 3))
    if left is None or right is None:
        return None
    if found[2] in ("=", "==", "!="):
        return (left == right) == (found[2] != "!=")
    a, b = whole_number(left), whole_number(right)
    if a is None or b is None:
        return None
    return {"-eq": a == b, "-ne": a != b, "-gt": a > b, "-ge": a >= b, "-lt": a < b, "-le": a <= b}[found[2]]


def _word(text: str, variables: Mapping[str, str], branches: Collection[str], *, given: bool) -> str | None:
    """A word of a comparison: plain text, or a variable that the script sets to plain text outside of any branch.

    ``given``: whether an argument of the script's own counts, which is then not known; else it is empty.
    """
    plain = text.strip("\"'")
    if not set(plain) & set("$`*?"):
        return plain
    found = _VALUE.match(plain)
    if found is None or found[1] in branches:
        return None
    value = variables.get(found[1], None if found[2] is None else found[2].strip("\"'"))
    if not given and _CALLERS.match(plain if value is None else value):
        return ""
    return None if value is None or set(value) & set("$`") else value
