"""Axes as they are written on a command line."""

from __future__ import annotations

import pytest

from memcheck.errors import UsageError
from memcheck.what_if.sweep import Axis, axis, grid


@pytest.mark.parametrize(
    ("written", "values"),
    [
        ("a.b=1,2,4", (1, 2, 4)),
        ("a=none, full", ("none", "full")),
        ("a=1..4", (1, 2, 3, 4)),
        ("a=1..2,8", (1, 2, 8)),
        ("a=true,false", (True, False)),
        ("a={kind: chunked, chunks: 8},standard", ({"kind": "chunked", "chunks": 8}, "standard")),
        ("a=0.5,1e3", (0.5, "1e3")),
        ("a=90%", ("90%",)),
    ],
)
def test_values_are_typed_as_in_a_plan(written: str, values: tuple[object, ...]) -> None:
    """YAML's types, flow mappings, and ranges of whole numbers."""
    assert axis(written).values == values


@pytest.mark.parametrize("written", ["a", "=1", "a=", "a..b=1", "a=1,1", "a={", "a=5..1", "a=1..99999999"])
def test_what_is_no_axis(written: str) -> None:
    """Missing keys or values, values twice, broken YAML, ranges that do not go up or never end."""
    with pytest.raises(ValueError, match=r"."):
        axis(written)


def test_the_last_axis_changes_fastest() -> None:
    """The grid's order, and its size without counting."""
    found = grid((Axis("a", (1, 2)), Axis("b", ("x", "y"))))
    assert list(found.points()) == [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}, {"a": 2, "b": "y"}]
    assert found.size == 4


@pytest.mark.parametrize(
    "axes",
    [
        (),
        (Axis("a", (1,)), Axis("a", (2,))),
        (Axis("training.loss", (1,)), Axis("training.loss.chunks", (2,))),
        (Axis("a", tuple(range(2000))), Axis("b", tuple(range(2000)))),
    ],
)
def test_grids_that_make_no_sense(axes: tuple[Axis, ...]) -> None:
    """No axis, one key twice or inside another, too many points."""
    with pytest.raises(UsageError):
        grid(axes)
