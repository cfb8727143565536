"""The sizes of curves: their numbers, and, apart from these, the form in which a step meets them.

Two curves of one form hold the same components at the same moments; a size that is zero in one is zero in the other.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.accounts.program import NOTHING, Bundle
from memcheck.autograd.curve import Curve, Peak
from memcheck.record import Record

Names = tuple[str, ...]

SCALARS = (
    "until_forward_ends", "gradients", "lingers", "returned", "input", "freed_input", "input_gradient",
    "output_gradient", "hands", "takes", "outlives", "for_weights",
)  # fmt: skip
"""Sizes of a curve that belong to one component each, as its fields are named."""


SOMETIMES = ("before", "hooked", "later")
"""Highest points that not every curve has."""


class Form(Record):
    """What a step meets of a curve but for the numbers."""

    saved: Names
    forward: Names
    backward: Names
    sometimes: tuple[Names | None, ...]
    """Names in the highest points that only some units have, in the order of ``SOMETIMES``; None: the unit has no such
    point.
    """
    scalars: tuple[bool, ...]
    """Which of ``SCALARS`` are not zero."""


class Sizes(Record):
    """The sizes of one curve."""

    form: int
    """Number of the curve's :class:`Form`."""
    numbers: tuple[int, ...]
    """Size by size in the order of the form, followed by the sums of those that always come together."""
    highs: tuple[Peak, ...]
    """The highest points: of forward, of backward, and those of ``SOMETIMES`` that it has."""


class NamedCurve(Record):
    """A curve with the places of its sizes in place of bytes: see :class:`memcheck.autograd.curve.Curve`."""

    saved: Bundle
    forward: Bundle
    backward: Bundle
    before: Bundle | None = None
    hooked: Bundle | None = None
    later: Bundle | None = None
    until_forward_ends: int = NOTHING
    gradients: int = NOTHING
    lingers: int = NOTHING
    returned: int = NOTHING
    input: int = NOTHING
    freed_input: int = NOTHING
    input_gradient: int = NOTHING
    output_gradient: int = NOTHING
    hands: int = NOTHING
    takes: int = NOTHING
    outlives: int = NOTHING
    for_weights: int = NOTHING

    @property
    def passes_back(self) -> bool:
        """Whether a gradient comes through: a frozen unit with nothing trained in front has no graph, and no hook of
        its backward runs.
        """
        return bool(self.saved.parts or self.backward.parts)


_forms: dict[Form, int] = {}
_by_number: list[Form] = []
_curves: dict[int, tuple[Curve, Sizes]] = {}
REMEMBERED = 16384


def forget() -> None:
    """Let go of every curve."""
    _curves.clear()


def sizes_of(curve: Curve) -> Sizes:
    """A curve's sizes. It is known by its identity, and kept alive as long."""
    known = _curves.get(id(curve))
    if known is None:
        if len(_curves) >= REMEMBERED:
            _curves.clear()
        known = _curves[id(curve)] = (curve, _sizes(curve))
    return known[1]


def _sizes(curve: Curve) -> Sizes:
    sometimes: list[Peak | None] = [getattr(curve, name) for name in SOMETIMES]
    highs = (curve.forward, curve.backward, *[high for high in sometimes if high is not None])
    parts = [curve.saved_components, *(high.components for high in highs)]
    scalars = [getattr(curve, name) for name in SCALARS]
    names = [tuple([name for name, _ in part]) for part in parts]
    rest = iter(names[3:])
    there = tuple([None if high is None else next(rest) for high in sometimes])
    form = Form(names[0], names[1], names[2], there, tuple([bool(n) for n in scalars]))
    if form not in _forms:
        _forms[form] = len(_by_number)
        _by_number.append(form)
    numbers = [n for part in parts for _, n in part] + [n for n in scalars if n]
    return Sizes(_forms[form], (*numbers, *[sum([n for _, n in part]) for part in parts]), highs)


def named_curve(form: int, first: int, high: int) -> tuple[NamedCurve, int, int]:
    """A curve of this form whose sizes have the places from ``first`` on, and the first places after it.

    ``high``: the number of its first highest point. Gives the curve, the next place and the next such number.
    """
    f = _by_number[form]
    names = [f.saved, f.forward, f.backward, *[some for some in f.sometimes if some is not None]]
    count = sum(map(len, names)) + sum(f.scalars) + len(names)
    places: Iterator[int] = iter(range(first, first + count))
    parts = [tuple([(name, next(places)) for name in some]) for some in names]
    scalars = {name: next(places) for name, there in zip(SCALARS, f.scalars, strict=True) if there}
    numbers = range(high - 1, high + len(names))
    bundles = [Bundle(part, next(places), number) for part, number in zip(parts, numbers, strict=False)]
    saved, forward, backward = bundles[:3]
    there = [name for name, some in zip(SOMETIMES, f.sometimes, strict=True) if some is not None]
    curve = NamedCurve(saved._replace(high=-1), forward, backward, **scalars)  # type: ignore[arg-type]
    curve = curve._replace(**dict(zip(there, bundles[3:], strict=True)))  # type: ignore[arg-type]
    return curve, first + count, high + len(names) - 1
