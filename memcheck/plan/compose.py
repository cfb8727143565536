"""What an unquoted scalar means: YAML 1.1 as PyYAML reads it, dates excepted, which stay text as they are in JSON.

YAML text to plain values and their places, in one pass over the parser's events.

Events rather than PyYAML's nodes: the parser keeps its own stack, so that depth is counted here instead of overflowing
the interpreter's, aliases are followed knowingly, and nothing is built that a clean plan does not need. The merge key
``<<`` joins mappings by reference; scalars with an explicit tag, such as ``!!str 012``, are read by that tag.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from memcheck.edge.libyaml import scalar_patterns, yaml
from memcheck.plan import finding as codes
from memcheck.plan.places import Collection, Entry, Via
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


WORDS: dict[str, object] = {
    "": None,
    **dict.fromkeys(("~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"), False),
}
"""The words that are no text."""

ODD_WORDS = frozenset(("yes", "Yes", "YES", "on", "On", "ON", "no", "No", "NO", "off", "Off", "OFF"))
"""Booleans of YAML 1.1 that are text in YAML 1.2."""

NUMBER_STARTS = frozenset("0123456789+-.")
NUMBER_CHARACTERS = NUMBER_STARTS | frozenset("_:abcdefxABCDEFinIN")
"""All characters of YAML 1.1's numbers, with those of hexadecimal digits, `.inf` and `.nan` in both cases."""

LARGEST = 2**63 - 1
"""No size in a plan is larger. A larger number is odd, and it is reported."""

DIGITS = 18
"""A decimal fraction with fewer characters is what it looks like, whatever else a number may be in YAML."""

LONGEST_BITS = 10_000
"""Python writes no integer with many more: 4,300 digits."""

_resolvers: dict[str, Any] = {}
_INT = "tag:yaml.org,2002:int"
_FLOAT = "tag:yaml.org,2002:float"


def number(text: str) -> tuple[object, bool]:
    """Return the value of an unquoted scalar that starts like a number, and whether it is odd.

    Odd: octal, sexagesimal, not finite, huge, or text that looks like a number (``1e-5``, ``0o17``).
    """
    whole, dot, part = text.partition(".")
    if dot and whole.isdecimal() and part.isdecimal() and text.isascii() and len(text) < DIGITS:
        return float(text), False
    if not NUMBER_CHARACTERS.issuperset(text):  # `90%` needs no patterns, which take long to load
        return text, looks_numeric(text)
    for tag, pattern in (_resolvers or _patterns()).get(text[0], ()):
        if tag in {_INT, _FLOAT} and pattern.match(text):
            try:
                return integer(text) if tag == _INT else floating(text)
            except (ValueError, OverflowError):
                return _oversized(text)
    return text, looks_numeric(text)


def _patterns() -> dict[str, Any]:
    _resolvers.update(scalar_patterns())
    return _resolvers


def looks_numeric(text: str) -> bool:
    """Return text that a person, or YAML 1.2, takes for a number."""
    body = text.lstrip("+-")
    if body[:2] in {"0o", "0O"}:
        return bool(body[2:]) and set(body[2:]) <= set("01234567")
    mantissa, e, exponent = body.lower().partition("e")
    return bool(e) and mantissa.replace(".", "", 1).isdecimal() and exponent.lstrip("+-").isdecimal()


def integer(text: str) -> tuple[object, bool]:
    """Return an integer of YAML 1.1. Raises ValueError or OverflowError where Python cannot read it or write it
    again.
    """
    body = text.replace("_", "")
    sign = -1 if body[0] == "-" else 1
    body = body.lstrip("+-")
    odd = False
    if body[:2] in {"0b", "0x"}:
        value = int(body[2:], 2 if body[1] == "b" else 16)
    elif body[0] == "0" and body != "0":
        value, odd = int(body, 8), True
    elif ":" in body:
        value, odd = int(_sexagesimal(body)), True
    else:
        value = int(body)
    if value.bit_length() > LONGEST_BITS:
        raise OverflowError
    return sign * value, odd or value > LARGEST


def floating(text: str) -> tuple[object, bool]:
    """Return a float of YAML 1.1."""
    body = text.replace("_", "").lower()
    sign = -1.0 if body[0] == "-" else 1.0
    body = body.lstrip("+-")
    if ":" in body:
        return sign * _sexagesimal(body), True
    value = float(body[1:] if body in {".inf", ".nan"} else body)
    return sign * value, value != value or value > LARGEST  # noqa: PLR0124  # not a number is not itself


def _sexagesimal(body: str) -> float:
    value = 0.0
    for part in body.split(":"):
        value = value * 60 + float(part)
    return value


def _oversized(text: str) -> tuple[object, bool]:
    """Python refuses to read more than some thousand digits; `0_` and `0x_` hold none."""
    if sum(map(str.isalnum, text)) < 100:
        return text, False
    return float("-inf" if text[0] == "-" else "inf"), True


try:
    from yaml._yaml import CParser as Parser
except ImportError:  # PyYAML without libyaml: the same events, seven times slower
    Parser = yaml.SafeLoader  # type: ignore[misc,assignment]

MAX_DEPTH = 100
TOO_DEEP = f"the document is nested more than {MAX_DEPTH} levels deep"
SHALLOW = "a plan needs fewer than ten levels"
MAX_NODES = 20_000
"""Values of one document, those that aliases repeat included."""
MAX_KEY = 1000
"""Characters of a key: everything below it is known by a path that repeats it."""
MAX_REPEATED = 200_000
"""Values that the documents of one file may take from elsewhere, all together: by aliases, and by ``extends``."""
MAX_DOCUMENTS = 2000
"""Documents of one file, empty ones included: of more, none has room for a plan."""

_SCALAR = yaml.ScalarEvent
_MAPPING = yaml.MappingStartEvent
_SEQUENCE = yaml.SequenceStartEvent
_ENDS = frozenset((yaml.MappingEndEvent, yaml.SequenceEndEvent))


def events(text: str) -> Callable[[], Any]:
    """Return what gives the next event of a YAML text with every call; raises yaml.YAMLError where there is none."""
    following: Callable[[], Any] = Parser(text).get_event
    return following


class ComposeProblem(Record):
    """Something wrong at an event."""

    code: codes.Code
    message: str
    event: Any
    help: str = ""
    related: tuple[tuple[str, Any], ...] = ()


class ComposeError(Exception):
    """The document cannot be composed any further."""

    def __init__(self, problem: ComposeProblem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class Composed(Record):
    """One document as it is written in its file."""

    values: object
    root: Any
    problems: tuple[ComposeProblem, ...]
    odd: bool
    size: int
    """How many values it holds, those that aliases repeat included."""
    lines: tuple[int, int]
    """The document's first line in the file, from 0, and the line after its last."""


class OpenCollection:
    """A collection that is being read."""

    __slots__ = ("block", "count", "key", "merges", "names", "start", "values")

    def __init__(self, start: Any, count: int, *, mapping: bool) -> None:
        self.start = start
        self.count = count
        self.names: dict[str, Entry] | None = {} if mapping else None
        self.values: Any = {} if mapping else []
        self.block = Collection(start, [] if self.names is None else self.names)
        self.key: Any = None
        self.merges: list[tuple[Any, Any, Any, Via | None]] = []


class Composer:
    """Reads one document after the other."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._repeated = 0
        self._next: Any = None
        self._anchors: dict[str, tuple[object, Any, int]] = {}
        self._earlier: dict[str, Any] = {}
        """Where anchors of the documents before this one are set."""
        self._begin()

    def _begin(self) -> None:
        self._stack: list[OpenCollection] = []
        for name, (_, place, _) in self._anchors.items():
            self._earlier[name] = place.start if isinstance(place, Collection) else place
        self._anchors = {}
        self._problems: list[ComposeProblem] = []
        self._count = 0
        self._odd = False

    def documents(self) -> Iterator[Composed]:
        """Yield every document; raises ComposeError or yaml.YAMLError at the first that cannot be read."""
        self._next = events(self._text)  # the pure Python parser objects to some characters here already
        count = 0
        while True:
            event = self._next()
            kind = event.__class__
            if kind is yaml.StreamEndEvent:
                return
            if kind is yaml.DocumentStartEvent:
                count += 1
                if count > MAX_DOCUMENTS:
                    message = f"the file holds more than {MAX_DOCUMENTS:,} documents"
                    raise ComposeError(ComposeProblem(codes.TOO_COMPLEX, message, self._next(), help="split it"))
                yield self._document(event.start_mark.line)

    def _document(self, first: int) -> Composed:
        self._begin()
        stack, following = self._stack, self._next
        while True:
            event: Any = following()
            kind = event.__class__
            via = None
            if kind is _SCALAR:
                self._count += 1
                value = self._scalar(event)
                place = event
                if event.anchor is not None:
                    self._anchors[event.anchor] = (value, place, 1)
            elif kind is _MAPPING or kind is _SEQUENCE:
                self._open(event, mapping=kind is _MAPPING)
                continue
            elif kind in _ENDS:
                value, place = self._close(event)
            else:
                value, place, via = self._alias(event)
            if not stack:
                end = following().end_mark
                return Composed(
                    values=value,
                    root=place,
                    problems=tuple(self._problems),
                    odd=self._odd,
                    size=self._count,
                    lines=(first, end.line + (end.column > 0)),
                )
            frame = stack[-1]
            if frame.names is None:
                frame.values.append(value)
                frame.block.items.append((None, place, via))  # type: ignore[union-attr]
            elif frame.key is None:
                frame.key = event if kind is _SCALAR else self._key(place, event)
            else:
                self._entry(frame, value, place, via)

    def _entry(self, frame: OpenCollection, value: object, place: Any, via: Via | None) -> None:
        key_event, frame.key = frame.key, None
        key = key_event.value
        if key == "<<" and key_event.implicit[0]:
            if frame.merges:
                self._duplicate(key_event, frame.merges[0][0])
            frame.merges.append((key_event, value, place, via))
            return
        names = frame.names
        if names is None:
            return
        if len(key) > MAX_KEY:
            message = f"a key is longer than {MAX_KEY:,} characters"
            raise ComposeError(ComposeProblem(codes.TOO_COMPLEX, message, key_event, help="shorten the key"))
        if key in names:
            self._duplicate(key_event, names[key][0])
        names[key] = (key_event, place, via)
        frame.values[key] = value

    def _duplicate(self, event: Any, first: Any) -> None:
        message = f"`{event.value}` is set twice in the same mapping; YAML keeps only the last"
        self._problems.append(
            ComposeProblem(
                codes.DUPLICATE_KEY, message, event, help="remove one of the two", related=(("first set here", first),)
            )
        )

    def _key(self, place: Any, event: Any) -> Any:
        """Return a key that is not a plain scalar event: an alias of one, or an error."""
        if place.__class__ is _SCALAR:
            return place
        at = place.start if isinstance(place, Collection) and event.__class__ in _ENDS else event
        raise ComposeError(ComposeProblem(codes.INVALID_YAML, "a mapping key must be one word, not a collection", at))

    def _scalar(self, event: Any) -> object:
        text: str = event.value
        plain, quoted = event.implicit
        if plain:
            if text in WORDS:
                if text in ODD_WORDS:
                    self._odd = True
                return WORDS[text]
            if text[0] in NUMBER_STARTS:
                if text.isdecimal() and text.isascii() and (text[0] != "0" or text == "0") and len(text) < 19:
                    return int(text)
                value, odd = number(text)
                self._odd |= odd
                return value
            return text
        return text if quoted else self._tagged(event)

    def _tagged(self, event: Any) -> object:

        value, problem = tagged(event)
        if problem is not None:
            self._problems.append(problem)
        self._odd = True  # `!!float .inf`
        return value

    def _open(self, event: Any, *, mapping: bool) -> None:
        if len(self._stack) >= MAX_DEPTH:
            raise ComposeError(ComposeProblem(codes.TOO_COMPLEX, TOO_DEEP, event, help=SHALLOW))
        if not event.implicit:
            self._collection_tag(event, mapping=mapping)
        self._count += 1
        self._check_count(event)
        self._stack.append(OpenCollection(event, self._count, mapping=mapping))

    def _collection_tag(self, event: Any, *, mapping: bool) -> None:
        if event.tag not in {"!", f"tag:yaml.org,2002:{'map' if mapping else 'seq'}"}:
            message = f"the tag `{shown_tag(event.tag)}` has no meaning in a plan"
            self._problems.append(ComposeProblem(codes.INVALID_YAML, message, event, help="remove the tag"))

    def _check_count(self, event: Any) -> None:
        if self._count > MAX_NODES:
            message = f"the document holds more than {MAX_NODES:,} values once its aliases are expanded"
            raise ComposeError(
                ComposeProblem(codes.TOO_COMPLEX, message, event, help="a plan needs fewer than two hundred")
            )

    def _close(self, event: Any) -> tuple[object, Any]:
        frame = self._stack.pop()
        frame.block.end = event
        self._check_count(frame.start)
        if frame.merges:
            self._merge(frame)
        if frame.start.anchor is not None:
            self._anchors[frame.start.anchor] = (frame.values, frame.block, self._count - frame.count + 1)
        return frame.values, frame.block

    def _merge(self, frame: OpenCollection) -> None:
        """Join what merge keys bring: the mapping's own keys win, then the earlier of a list of merged mappings."""
        names, values = merge(frame.merges, self._problems)
        names.update(frame.names or {})
        values.update(frame.values)
        frame.names = frame.block.items = names
        frame.values = values

    def _alias(self, event: Any) -> tuple[object, Any, Via]:
        name = event.anchor
        found = self._anchors.get(name)
        if found is None:
            if any(frame.start.anchor == name for frame in self._stack):
                raise ComposeError(
                    ComposeProblem(codes.INVALID_YAML, f"the alias `*{name}` is inside the value it repeats", event)
                )
            if name in self._earlier:
                message = f"the alias `*{name}` repeats nothing: `&{name}` belongs to an earlier document"
                help = "an anchor ends with its document, at `---`: write the value again, or share it by `extends:`"
                set_at = ((f"`&{name}` is set here", self._earlier[name]),)
                raise ComposeError(ComposeProblem(codes.INVALID_YAML, message, event, help=help, related=set_at))
            message = f"the alias `*{name}` repeats nothing: there is no `&{name}` above it"
            known = ", ".join(f"`&{known}`" for known in self._anchors)
            help = f"anchors above: {known}" if known else f'quote the value if it is text: "*{name}"'
            raise ComposeError(ComposeProblem(codes.INVALID_YAML, message, event, help=help))
        value, place, size = found
        self._count += size
        self._check_count(event)
        self._repeated += size
        if self._repeated > MAX_REPEATED:
            message = f"the aliases of this file repeat more than {MAX_REPEATED:,} values"
            raise ComposeError(ComposeProblem(codes.TOO_COMPLEX, message, event, help="split the file"))
        return value, place, Via("", event, f"*{name}")


def shown_tag(tag: str) -> str:
    """A tag as users write it."""
    return tag.replace("tag:yaml.org,2002:", "!!")


def merge(
    merges: list[tuple[Any, Any, Any, Via | None]], problems: list[ComposeProblem]
) -> tuple[dict[str, Entry], dict[str, object]]:
    """Return the entries and values that merge keys bring into one mapping; of several, the first that has a key
    wins.
    """
    names: dict[str, Entry] = {}
    values: dict[str, object] = {}
    # A second `<<` is reported as a duplicate; as for any other key the last one counts first.
    for key_event, value, place, via in reversed(merges):
        for each, where, through in _mappings(value, place, via):
            if not isinstance(each, dict):
                problems.append(_not_a_mapping(key_event, where))
                continue
            for name, entry in where.items.items():
                if name not in names:
                    names[name] = _carried(entry, key_event, through)
                    values[name] = each[name]
    return names, values


def _mappings(value: object, place: Any, via: Via | None) -> list[tuple[object, Any, str]]:
    text = via.text if via is not None else ""
    if isinstance(value, list):
        return [
            (each, entry[1], entry[2].text if entry[2] is not None else text)
            for each, entry in zip(value, place.items, strict=True)
        ]
    return [(value, place, text)]


def _carried(entry: Entry, key_event: Any, through: str) -> Entry:
    """Return an entry as seen from the mapping it is merged into; one that was written inside the merge key is its
    own.
    """
    key, place, via = entry
    return (key, place, Via("", key_event, f"<<: {through}")) if through else (key, place, via)


def _not_a_mapping(key_event: Any, place: Any) -> ComposeProblem:
    at = place.start if isinstance(place, Collection) else place
    message = "`<<` takes a mapping or a list of mappings"
    return ComposeProblem(
        codes.INVALID_YAML, message, key_event, help="write `<<: *anchor`", related=(("this is none", at),)
    )


def tagged(event: Any) -> tuple[object, ComposeProblem | None]:
    """Return the value of a tagged scalar; with a problem, its text."""
    tag, text = shown_tag(event.tag), event.value
    try:
        if tag in {"!!str", "!!timestamp"}:
            return text, None
        if tag == "!!int":
            return integer(text)[0], None
        if tag == "!!float":
            return floating(text)[0], None
        if tag in {"!!bool", "!!null"} and isinstance(WORDS.get(text, text), bool if tag == "!!bool" else type(None)):
            return WORDS[text], None
    except (ValueError, IndexError):
        pass
    if tag in {"!!int", "!!float", "!!bool", "!!null"}:
        return text, ComposeProblem(
            codes.INVALID_YAML, f"`{text}` cannot be read as `{tag}`", event, help="remove the tag"
        )
    return text, ComposeProblem(
        codes.INVALID_YAML, f"the tag `{tag}` has no meaning in a plan", event, help="remove the tag"
    )
