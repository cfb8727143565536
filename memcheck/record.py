"""``Record``: ``typing.NamedTuple`` to type checkers and to whoever uses one, and twenty times cheaper to define.

``NamedTuple`` compiles every annotation and a constructor per class. That is what it takes to check their types at run
time, which nothing here does, and with the eighty records that a single ``check`` defines it takes longer than to
predict a plan's memory. Here a class is made of its fields' names and defaults alone; the constructor is compiled once
a record turns out to be made by the hundred.
"""

from __future__ import annotations

from collections.abc import Iterable
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

OFTEN = 50
"""Instances of a class after which compiling a constructor for it saves time."""

_new = tuple.__new__
_equal: Any = tuple.__eq__
_by_value: Any = tuple.__hash__


_GETTERS: list[object] = []
"""The attribute of each place: one for all records."""
_made: dict[type, int] = {}
"""Instances so far, of classes whose constructor is not compiled."""


class _RecordType(type):
    """Makes a tuple with named fields of a class body with annotations, as ``NamedTuple`` does."""

    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> _RecordType:
        if "__annotations__" not in body:  # a variant: a subclass with the same fields
            body["__slots__"] = ()
            if "__hash__" not in body and getattr(bases[0], "__hash__", None) is _by_value:
                body.update(__eq__=_same, __ne__=_other, __hash__=_hashed)
            return type.__new__(cls, name, bases, body)
        fields = tuple(body["__annotations__"])
        while len(fields) > len(_GETTERS):
            _GETTERS.append(field_getter(len(_GETTERS), None))
        body["__slots__"] = ()
        body["_fields"] = body["__match_args__"] = fields
        body["_field_defaults"] = {field: body[field] for field in fields if field in body}
        body.update(zip(fields, _GETTERS, strict=False))
        return type.__new__(cls, name, bases, body)


def _same(self: Any, other: object) -> bool:
    """A variant equals only records of its own type: two types with equal fields are two kinds of module."""
    return type(self) is type(other) and bool(_equal(self, other))


def _other(self: Any, other: object) -> bool:
    return not _same(self, other)


def _hashed(self: Any) -> int:
    return hash((type(self), tuple.__hash__(self)))


def _compiled(record: Any) -> Any:
    """A constructor with the fields as its parameters, compiled as ``namedtuple`` does it."""
    name, fields = record.__name__, record._fields
    names = ", ".join(fields)
    constructor = eval(f"lambda _cls, {names}: _new(_cls, ({names},))", {"_new": _new})  # noqa: S307 - identifiers
    constructor.__name__, constructor.__qualname__ = "__new__", f"{name}.__new__"
    constructor.__defaults__ = tuple(record._field_defaults.values())
    return constructor


class _Places:
    """The places of a record's fields, found for the first one who asks its class."""

    def __get__(self, record: object, kind: Any) -> dict[str, int]:
        found = kind._places = {field: place for place, field in enumerate(kind._fields)}  # noqa: SLF001
        return found


class _Methods(tuple):  # type: ignore[type-arg]  # of any fields
    """What every record can do."""

    __slots__ = ()
    _places = _Places()
    if TYPE_CHECKING:
        _fields: tuple[str, ...]

    def __new__(cls: Any, /, *values: object, **named: object) -> Any:
        """Takes the fields by place or by name. What does not fit is left for the compiled one to refuse."""
        made = _made[cls] = _made.get(cls, 0) + 1
        if made < OFTEN:
            fields = cls._fields
            if not named and len(values) == len(fields):
                return _new(cls, values)
            given = dict(zip(fields, values))  # noqa: B905 - too many are found below
            row = {**cls._field_defaults, **given, **named}
            if len(row) == len(fields) and len(given) == len(values) and named.keys().isdisjoint(given):
                try:
                    return _new(cls, map(row.__getitem__, fields))
                except KeyError:  # one is missing, and another is no field
                    pass
        compiled = _compiled(cls)
        cls.__new__ = staticmethod(compiled)
        return compiled(cls, *values, **named)

    @classmethod
    def _make(cls, values: Iterable[Any]) -> Any:
        """A record of an iterable."""
        return cls(*values)

    def _asdict(self) -> dict[str, object]:
        """The record as a dict from field to value."""
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
    # without the class of the methods among its bases: every class looks up some hundred names in each of its own
    Record = type.__new__(_RecordType, "Record", (tuple,), {**vars(_Methods), "__module__": __name__})
