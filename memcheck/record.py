"""``Record``: ``typing.NamedTuple`` to type checkers and to whoever uses one, and twenty times cheaper to define.

``NamedTuple`` compiles every annotation and a constructor per class. That is what it takes to check their types at run
time, which nothing here does, and with the eighty records that a single ``check`` defines it takes longer than to
predict a plan's memory. Here a class is made of its fields' names and defaults alone; the constructor is compiled once
a record turns out to be made by the hundred.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import itemgetter

try:
    from _collections import _tuplegetter as field_getter  # type: ignore[import-not-found]  # what namedtuple's fields are
except ImportError:

    def field_getter(place: int, doc: str | None) -> object:
        """The attribute of one field."""
        return property(itemgetter(place), doc=doc)


TYPE_CHECKING = False
if TYPE_CHECKING:  # the name alone tells a type checker; the module of that name costs more than this one
    from typing import Any
    from typing import NamedTuple as Record

__all__ = ["Record"]

OFTEN = 100
"""After so many instances a compiled constructor has paid for itself."""

_new = tuple.__new__


class _RecordType(type):
    """Makes a tuple with named fields of a class body with annotations, as ``NamedTuple`` does."""

    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> _RecordType:
        fields = tuple(body["__annotations__"])
        defaults = {field: body[field] for field in fields if field in body}
        body.update(
            __slots__=(),
            _fields=fields,
            _field_defaults=defaults,
            __match_args__=fields,
            _places={field: place for place, field in enumerate(fields)},
            __new__=_constructor(name, fields, defaults),
        )
        for place, field in enumerate(fields):
            body[field] = field_getter(place, None)
        return type.__new__(cls, name, bases, body)


def _constructor(name: str, fields: tuple[str, ...], defaults: dict[str, object]) -> Callable[..., object]:
    """``__new__``: takes the fields by place or by name. What does not fit is left for the compiled one to refuse."""
    count, required = len(fields), len(fields) - len(defaults)
    last = tuple(defaults.values())
    blank = (*[None] * required, *last)
    places = {field: place for place, field in enumerate(fields)}
    made = 0

    def __new__(cls: Any, /, *values: object, **named: object) -> object:  # noqa: N807 - becomes the class's own
        nonlocal made
        made += 1
        given = len(values)
        if made < OFTEN:
            if not named:
                if given == count:
                    return _new(cls, values)
                if required <= given < count:
                    return _new(cls, values + last[given - required :])
            elif given + len(named) <= count:
                row = [*values, *blank[given:]]
                for field, value in named.items():
                    place = places.get(field, -1)
                    if place < given:  # no field, or one that has its value by place
                        break
                    row[place] = value
                else:
                    if given >= required or named.keys() >= {*fields[given:required]}:
                        return _new(cls, row)
        compiled = _compiled(name, fields, last)
        cls.__new__ = staticmethod(compiled)
        return compiled(cls, *values, **named)

    return __new__


def _compiled(name: str, fields: tuple[str, ...], last: tuple[object, ...]) -> Any:
    """A constructor with the fields as its parameters, compiled as ``namedtuple`` does it."""
    names = ", ".join(fields)
    constructor = eval(f"lambda _cls, {names}: _new(_cls, ({names},))", {"_new": _new})  # noqa: S307 - identifiers
    constructor.__name__, constructor.__qualname__ = "__new__", f"{name}.__new__"
    constructor.__defaults__ = last
    return constructor


class _Methods(tuple):  # type: ignore[type-arg]  # of any fields
    """What every record can do."""

    __slots__ = ()
    if TYPE_CHECKING:
        _fields: tuple[str, ...]
        _places: dict[str, int]

    @classmethod
    def _make(cls, values: Iterable[Any]) -> Any:
        """A record of an iterable."""
        return cls(*values)

    def _asdict(self) -> dict[str, object]:
        """Field to value."""
        return dict(zip(self._fields, self, strict=True))

    def _replace(self, /, **changes: object) -> Any:
        """A copy with some fields changed."""
        values, places = list(self), self._places
        try:
            for field, value in changes.items():
                values[places[field]] = value
        except KeyError:
            missing = ", ".join(changes.keys() - places.keys())
            raise TypeError(f"{type(self).__name__} has no field {missing}") from None
        return _new(type(self), values)

    __replace__ = _replace

    def __repr__(self) -> str:
        fields = ", ".join(f"{field}={value!r}" for field, value in zip(self._fields, self, strict=True))
        return f"{type(self).__name__}({fields})"

    def __getnewargs__(self) -> tuple[object, ...]:
        return tuple(self)


if not TYPE_CHECKING:
    Record = type.__new__(_RecordType, "Record", (_Methods,), {"__slots__": (), "__module__": __name__})
