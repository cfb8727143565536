"""A Record is a NamedTuple in all that the package, its users and the type checker can see."""

from __future__ import annotations

import copy
import pickle
import typing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from memcheck import record
from memcheck.record import Record


class Point(Record):
    """A place on a line."""

    name: str
    values: tuple[int, ...] = ()
    """Keyword names of the constructor's own must not be in the way."""
    cls: int = 0

    @property
    def total(self) -> int:
        """Their sum."""
        return sum(self.values)

    def named(self, name: str) -> Point:
        """The same under another name."""
        return self._replace(name=name)


class Reference(NamedTuple):
    """A place on a line."""

    name: str
    values: tuple[int, ...] = ()
    cls: int = 0


class Single(Record):
    """One field."""

    only: int


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    (("a",), {}),
    (("a", (1, 2)), {}),
    (("a", (1, 2), 3), {}),
    ((), {"name": "a"}),
    ((), {"cls": 4, "name": "a"}),
    (("a",), {"cls": 4}),
    (("a", (1,)), {"cls": 4}),
    ((), {"name": "a", "values": (3,), "cls": 4}),
]
WRONG_CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    ((), {"values": (1,)}),
    (("a", (), 1, 2), {}),
    (("a",), {"name": "a"}),
    (("a", ()), {"values": ()}),
    (("a",), {"other": 1}),
    ((), {"name": "a", "other": 1}),
    (("a", (), 1), {"other": 1}),
]


def test_construction_is_a_named_tuples() -> None:
    """Fields come by place, by name or from their defaults, in the order in which they are declared."""
    for args, named in CALLS:
        assert tuple(Point(*args, **named)) == tuple(Reference(*args, **named)), (args, named)


@pytest.mark.parametrize(("args", "named"), WRONG_CALLS)
def test_wrong_construction_is_refused_as_a_named_tuple_does(args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Missing, surplus, repeated and unknown fields raise TypeError with the words of a namedtuple."""

    class Fresh(Record):
        name: str
        values: tuple[int, ...] = ()
        cls: int = 0

    with pytest.raises(TypeError) as expected:
        Reference(*args, **named)
    for _ in range(2):
        with pytest.raises(TypeError) as refused:
            Fresh(*args, **named)
        assert str(refused.value).rpartition("__new__")[2] == str(expected.value).rpartition("__new__")[2]
    assert Fresh("a", cls=2) == ("a", (), 2)


def test_a_record_made_often_stays_the_same() -> None:
    """The constructor that is compiled after many instances takes what the first one took."""

    class Frequent(Record):
        name: str
        values: tuple[int, ...] = ()
        cls: int = 0

    first = Frequent.__new__
    before = [Frequent(*args, **named) for args, named in CALLS]
    for _ in range(record.OFTEN):
        Frequent("a")
    assert Frequent.__new__ is not first
    assert [Frequent(*args, **named) for args, named in CALLS] == before
    assert type(before[0]) is type(Frequent("a")) is Frequent
    assert Frequent.__new__(Frequent, "b") == ("b", (), 0)


def test_a_record_is_a_tuple() -> None:
    """Records unpack, compare, sort and hash as the tuples they are, and cannot be changed."""
    point = Point("a", (1, 2))
    name, *rest = point
    assert (name, rest) == ("a", [(1, 2), 0])
    assert isinstance(point, tuple)
    assert point == ("a", (1, 2), 0)
    assert hash(point) == hash(("a", (1, 2), 0))
    assert Point("a") < Point("b")
    assert point[1] is point.values
    assert Single(1) == (1,)
    assert Single(only=1).only == 1
    with pytest.raises(AttributeError):
        point.name = "b"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        point.other = 1  # type: ignore[attr-defined]


def test_what_the_class_body_defines_stays() -> None:
    """Docstrings, properties, methods and annotations are those of the class body."""
    point = Point("a", (1, 2))
    assert point.total == 3
    assert point.named("b") == Point("b", (1, 2))
    assert Point.__doc__ == "A place on a line."
    assert Point.__qualname__ == Point.__name__ == "Point"
    assert Point.__module__ == __name__
    assert typing.get_type_hints(Point) == {"name": str, "values": tuple[int, ...], "cls": int}


def test_the_tools_of_a_named_tuple_are_there() -> None:
    """``_replace``, ``_asdict``, ``_make``, ``_fields``, ``_field_defaults``, ``repr`` and ``match`` work alike."""
    mine, theirs = Point("a", (1,)), Reference("a", (1,))
    assert tuple(mine._replace(cls=3)) == tuple(theirs._replace(cls=3))
    assert type(mine._replace(cls=3)) is Point
    assert mine._asdict() == theirs._asdict()
    assert list(mine._asdict()) == list(theirs._asdict())
    assert Point._make(["a", (1,), 2]) == Point("a", (1,), 2)
    assert Point._fields == Reference._fields
    assert Point._field_defaults == Reference._field_defaults
    assert repr(mine) == repr(theirs).replace("Reference", "Point")
    assert repr(Single((1, 2))) == "Single(only=(1, 2))"  # type: ignore[arg-type]
    match mine:
        case Point(name, values):
            assert (name, values) == ("a", (1,))


def test_replacing_an_unknown_field_is_refused() -> None:
    """``_replace`` names the fields that a record does not have."""
    with pytest.raises(TypeError, match="Point has no field other"):
        Point("a")._replace(other=1)  # type: ignore[call-arg]


def test_the_package_defines_no_dearer_records(root: Path) -> None:
    """Every record of the package is a Record."""
    dearer = [path.name for path in (root / "memcheck").rglob("*.py") if "(NamedTuple)" in path.read_text("utf-8")]
    assert dearer == []


def test_records_are_copied_and_pickled() -> None:
    """A copy and a pickled record are equal to the original and of its class."""
    point = Point("a", (1,), 2)
    copies = [copy.copy(point), copy.deepcopy(point)]
    copies += [pickle.loads(pickle.dumps(point, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]  # noqa: S301
    for other in copies:
        assert other == point
        assert type(other) is Point


class Wide(Point):
    """The same fields, and another kind."""


def test_a_variant_equals_only_its_own_type() -> None:
    """Caches tell a variant from its base; a copy with another value stays one."""
    assert Wide("a") == Wide("a")
    assert hash(Wide("a")) == hash(Wide("a"))
    assert Wide("a") != Point("a")
    assert Point("a") != Wide("a")
    assert (Wide("a"),) not in {(Point("a"),): 1}
    assert type(Wide("a").named("b")) is Wide
