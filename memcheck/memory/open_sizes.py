"""The sizes of curves and groups: their numbers, and, apart from these, the form in which a walk meets them.

Two curves of one form hold the same components at the same moments; a size that is zero in one is zero in the other.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import accumulate

from memcheck.autograd.curve import Curve, High
from memcheck.frameworks.torch.fsdp import Group
from memcheck.frameworks.torch.pipelining import Border
from memcheck.memory.conduct import Beyond, Groups
from memcheck.memory.open_timeline import digit
from memcheck.record import Record

Names = tuple[str, ...]


class Form(Record):
    """What a walk meets of a curve but for the numbers."""

    saved: Names
    forward: Names
    backward: Names
    before: Names | None
    scalars: tuple[bool, ...]
    """Which of ``SCALARS`` are not zero."""


SCALARS = (
    "until_forward_ends", "gradients", "lingers", "returned", "input", "freed_input", "input_gradient",
    "output_gradient", "outlives",
)  # fmt: skip


class Sizes(Record):
    """Of one curve."""

    form: int
    """Its number."""
    numbers: tuple[int, ...]
    """Digit by digit; behind them the sums of those that always come together."""
    labels: Names
    """Of the highest points."""


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
    highs = [curve.forward, curve.backward, *([] if curve.before is None else [curve.before])]
    parts = [curve.saved_components, *(high.components for high in highs)]
    scalars = [getattr(curve, name) for name in SCALARS]
    names = [tuple([name for name, _ in part]) for part in parts]
    before = names[3] if curve.before is not None else None
    form = Form(names[0], names[1], names[2], before, tuple([bool(n) for n in scalars]))
    if form not in _forms:
        _forms[form] = len(_by_number)
        _by_number.append(form)
    bytes_of = [[n for _, n in part] for part in parts]
    numbers = [n for part in bytes_of for n in part] + [n for n in scalars if n]
    return Sizes(_forms[form], (*numbers, *map(sum, bytes_of)), tuple([high.label for high in highs]))


def parts_of(form: int) -> tuple[list[int], int]:
    """How many digits each sum of a form takes, and how many all of it takes."""
    f = _by_number[form]
    lengths = [len(f.saved), len(f.forward), len(f.backward), *([] if f.before is None else [len(f.before)])]
    return lengths, sum(lengths) + sum(f.scalars)


def open_curve(form: int, first: int, label: int) -> Curve:
    """A curve of this form with digits from ``first`` on for its sizes; ``label``: the number of its first label."""
    f = _by_number[form]
    places: Iterator[int] = iter(range(first, first + parts_of(form)[1]))

    def components(names: Names) -> tuple[tuple[str, int], ...]:
        return tuple([(name, digit(next(places))) for name in names])

    def high(names: Names, number: int) -> High:
        found = components(names)
        return High(sum(n for _, n in found), str(number), found)

    saved = components(f.saved)
    forward, backward = high(f.forward, label), high(f.backward, label + 1)
    before = None if f.before is None else high(f.before, label + 2)
    scalars = {name: digit(next(places)) if there else 0 for name, there in zip(SCALARS, f.scalars, strict=True)}
    return Curve(
        saved=sum(n for _, n in saved),
        saved_inventory=(),
        saved_components=saved,
        forward=forward,
        backward=backward,
        before=before,
        **scalars,
    )


class Numbers(Record):
    """Sizes in a row, and where some of them are nothing or one and the same."""

    form: Hashable
    numbers: tuple[int, ...]


def numbered(values: tuple[int, ...]) -> Numbers:
    """Each value that is not zero, once for those that are the same quantity (see :func:`group_numbers`)."""
    return Numbers(tuple([bool(n) for n in values]), tuple([n for n in values if n]))


def group_numbers(groups: Groups) -> Numbers:
    """The sizes of a unit's groups. New gradients in the shards' dtype are the reduction's output where that has it."""
    values: list[int] = []
    same = []
    for g in groups:
        same.append(g.sharded == g.reduce_output)
        values += [*g[:4], 0 if same[-1] else g.sharded, g.accumulated]
    form, numbers = numbered(tuple(values))
    return Numbers((form, *same), numbers)


def groups_of(form: Hashable, first: int) -> Groups:
    """Groups of this form."""
    there: tuple[bool, ...] = form[0]  # type: ignore[index]
    same: tuple[bool, ...] = form[1:]  # type: ignore[index]
    row = _digits(there, first)
    found = []
    for index, alike in enumerate(same):
        flat, gathered, taken, given, sharded, accumulated = row[6 * index : 6 * index + 6]
        found.append(Group(flat, gathered, taken, given, given if alike else sharded, accumulated))
    return Groups(*found)


def beyond_numbers(beyond: Beyond) -> Numbers:
    """The sizes beside units and groups."""
    border = beyond.border
    edges = (border.input_gradient, border.unsent_output, border.output_gradient)
    return numbered((beyond.per_micro_batch, *edges, beyond.table, beyond.table_slice, beyond.masks, *beyond.held))


def open_beyond(form: Hashable, first: int) -> Beyond:
    """Sizes of this form."""
    own, arriving, unsent, leaving, table, rows, masks, *held = _digits(form, first)  # type: ignore[arg-type]
    border = Border(input_gradient=arriving, unsent_output=unsent, output_gradient=leaving)
    return Beyond(own, tuple(held), border, table, rows, masks)


def _digits(there: tuple[bool, ...], first: int) -> list[int]:
    """A digit for each size that is not zero."""
    places = accumulate((int(one) for one in there), initial=first)
    return [digit(place) if one else 0 for one, place in zip(there, places, strict=False)]


def taken(there: Hashable) -> int:
    """How many places sizes of this form take."""
    places: int = sum(there)  # type: ignore[call-overload]
    return places
