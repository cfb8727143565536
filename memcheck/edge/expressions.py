"""Regular expressions out of files. Python's ``re`` never runs on them: some of them keep it busy for ever.

What follows a place is found for all places at once, so that no expression is tried twice at one of them. Understood is
what module patterns are made of: characters, classes, groups, alternatives, repetitions, looking ahead and anchors.
"""

from __future__ import annotations

LONGEST, DEEPEST, MOST_TIMES = 1000, 16, 64
STEPS = 1_000_000
"""Places that one expression looks at, on all texts together."""
WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
CLASSES = {"d": frozenset("0123456789"), "w": WORD, "s": frozenset(" \t\n\r\f\v")}
UNBOUNDED = -1

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    Node = tuple["str | int | frozenset[str] | Node", ...]


class ExpressionError(Exception):
    """An expression that is not one, or of a kind that is not understood."""


class Expression:
    """A compiled expression.

    Raises:
        ExpressionError: it cannot be read.
    """

    __slots__ = ("_at", "_left", "_node", "_text")

    def __init__(self, text: str) -> None:
        if len(text) > LONGEST:
            self._fail(f"it is longer than {LONGEST} characters")
        self._text, self._at, self._left = text, 0, STEPS
        self._node = self._alternatives(0)
        if self._at < len(text):
            self._fail(f"`{text[self._at]}` closes nothing")

    def fullmatch(self, text: str) -> bool:
        """Whether the whole text matches, as ``re.fullmatch`` has it.

        Raises:
            ExpressionError: the expression is too much work.
        """
        return len(text) in self._ends(self._node, text, frozenset((0,)))

    def begins(self, text: str) -> bool:
        """Whether the start of the text matches, as ``re.match`` has it.

        Raises:
            ExpressionError: the expression is too much work.
        """
        return bool(self._ends(self._node, text, frozenset((0,))))

    def _fail(self, why: str) -> NoReturn:
        raise ExpressionError(why)

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        found = self._next()
        if not found:
            self._fail("it ends too early")
        self._at += 1
        return found

    def _alternatives(self, depth: int) -> Node:
        if depth > DEEPEST:
            self._fail(f"its groups are nested more than {DEEPEST} deep")
        found: list[Node] = [self._sequence(depth)]
        while self._next() == "|":
            self._at += 1
            found.append(self._sequence(depth))
        return found[0] if len(found) == 1 else ("any", *found)

    def _sequence(self, depth: int) -> Node:
        found: list[Node] = []
        while self._next() and self._next() not in "|)":
            found.append(self._repeated(self._atom(depth)))
        return ("all", *found)

    def _atom(self, depth: int) -> Node:
        c = self._take()
        if c == "(":
            return self._group(depth)
        if c == "[":
            return self._class()
        if c == "\\":
            return self._escaped()
        if c in "^$":
            return ("start",) if c == "^" else ("end",)
        if c == ".":
            return ("but", frozenset("\n"))
        if c in "*+?{":
            self._fail(f"`{c}` repeats nothing")
        return ("one", frozenset(c))

    def _escaped(self) -> Node:
        c = self._take()
        if c.lower() in CLASSES:
            return ("one" if c in CLASSES else "but", CLASSES[c.lower()])
        if c in "AZ":
            return ("start",) if c == "A" else ("end",)
        if c.isalnum():
            self._fail(f"`\\{c}` is not understood")
        return ("one", frozenset(c))

    def _group(self, depth: int) -> Node:
        kind = "all"
        if self._next() == "?":
            self._at += 1
            mark = self._take()
            if mark == "P" and self._next() == "<":
                while self._take() != ">":
                    pass
            elif mark in "=!":
                kind = "ahead" if mark == "=" else "not"
            elif mark != ":":
                self._fail(f"`(?{mark}` is not understood")
        inside = self._alternatives(depth + 1)
        if self._take() != ")":
            self._fail("a group is not closed")
        return (kind, inside)

    def _class(self) -> Node:
        kind, members, first = "one", set[str](), True
        if self._next() == "^":
            kind, self._at = "but", self._at + 1
        while first or self._next() != "]":
            c, first = self._take(), False
            if c == "\\":
                name = self._take()
                if name in CLASSES:
                    members |= CLASSES[name]
                    continue
                if name.isalnum():
                    self._fail(f"`\\{name}` is not understood in brackets")
                c = name
            if self._next() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                last = self._take()
                if not ord(c) <= ord(last) <= ord(c) + 255:
                    self._fail(f"`{c}-{last}` is no range")
                members.update(map(chr, range(ord(c), ord(last) + 1)))
            else:
                members.add(c)
        self._at += 1
        return (kind, frozenset(members))

    def _repeated(self, node: Node) -> Node:
        c = self._next()
        bounds = {"*": (0, UNBOUNDED), "+": (1, UNBOUNDED), "?": (0, 1)}.get(c) if c else None
        if bounds is not None:
            self._at += 1
        elif c == "{":
            bounds = self._counted()
        if bounds is None:
            return node
        if self._next() == "?":  # how much a repetition would like to take changes nothing
            self._at += 1
        if self._next() and self._next() in "*+{":
            self._fail("a repetition is repeated")
        return ("times", node, *bounds)

    def _counted(self) -> tuple[int, int]:
        end = self._text.find("}", self._at)
        least, comma, most = self._text[self._at + 1 : end].partition(",")
        self._at = end + 1
        numbers = [n for n in (least, most) if n]
        if end < 0 or not numbers or not all(n.isascii() and n.isdigit() and len(n) < 3 for n in numbers):
            self._fail("a number of repetitions cannot be read")
        low = int(least or 0)
        high = (int(most) if most else UNBOUNDED) if comma else low
        if max(low, high) > MOST_TIMES or UNBOUNDED < high < low:
            self._fail("a number of repetitions cannot be read")
        return low, high

    def _ends(self, node: Node, text: str, places: frozenset[int]) -> frozenset[int]:
        """Where the node can end that starts at any of these places."""
        self._left -= 1 + len(places)
        if self._left < 0:
            self._fail("it takes too long to match")
        kind, inside = node[0], node[1:]
        if kind in ("one", "but"):
            (members,) = inside
            wanted = kind == "one"
            return frozenset(p + 1 for p in places if p < len(text) and (text[p] in members) is wanted)  # type: ignore[operator]
        if kind == "start":
            return places & {0}
        if kind == "end":
            return places & {len(text)}
        return self._ends_of_several(kind, inside, text, places)

    def _ends_of_several(self, kind: object, inside: Node, text: str, places: frozenset[int]) -> frozenset[int]:
        if kind == "any":
            return frozenset().union(*(self._ends(n, text, places) for n in inside if isinstance(n, tuple)))
        if kind == "all":
            for n in inside:
                if isinstance(n, tuple) and places:
                    places = self._ends(n, text, places)
            return places
        node = inside[0]
        if not isinstance(node, tuple):
            return places
        if kind in ("ahead", "not"):
            return frozenset(p for p in places if bool(self._ends(node, text, frozenset((p,)))) is (kind == "ahead"))
        _, low, high = inside
        return self._times(node, int(low), int(high), text, places)  # type: ignore[arg-type]

    def _times(self, node: Node, low: int, high: int, text: str, places: frozenset[int]) -> frozenset[int]:
        for _ in range(low if places else 0):
            places = self._ends(node, text, places)
        found, fresh, count = places, places, low
        while fresh and count != high:
            fresh = self._ends(node, text, fresh) - found
            found |= fresh
            count += 1
        return found
