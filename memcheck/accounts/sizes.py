"""Memory curves of units, split into their sizes in bytes and their pattern: which of the sizes are not zero.

Two curves of one pattern hold the same components at the same moments; a size that is zero in one is zero in the other.
So a step is recorded once for a pattern, with indices instead of bytes, and evaluated with the bytes of each curve.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.accounts.program import NOTHING, Bundle
from memcheck.autograd.curve import Curve, Peak
from memcheck.record import Record

Names = tuple[str, ...]

SCALARS = (
    "autocast_cache_bytes",
    "gradient_bytes",
    "until_backward_ends",
    "extra_output_bytes",
    "input_bytes",
    "freed_input_bytes",
    "input_gradient_bytes",
    "output_gradient_bytes",
    "left_gradient_bytes",
    "taken_gradient_bytes",
    "until_graph_freed",
    "weight_backward_bytes",
)
"""Fields of :class:`memcheck.autograd.curve.Curve` that are one number of bytes, not a list of components."""


SOMETIMES = ("peak_before_loss", "grad_hook_peak", "later_grad_hook_peak")
"""Peaks that not every curve has, as the fields of :class:`memcheck.autograd.curve.Curve` are named."""


class CurvePattern(Record):
    """The pattern of a unit's memory curve: the components that are alive at each of its points, without bytes."""

    saved: Names
    """Components of the tensors saved for backward."""
    forward: Names
    """Components at the forward's peak."""
    backward: Names
    """Components at the backward's peak."""
    sometimes: tuple[Names | None, ...]
    """Components at the peaks that only some units have, in the order of ``SOMETIMES``; None: the unit has no such
    peak.
    """
    scalars: tuple[bool, ...]
    """Which of ``SCALARS`` are not zero."""


class Sizes(Record):
    """The sizes of one curve."""

    pattern: int
    """Number of the curve's :class:`CurvePattern`."""
    numbers: tuple[int, ...]
    """Bytes of each component at each point of the pattern, then the nonzero scalars, then the sum of each point."""
    highs: tuple[Peak, ...]
    """The peaks: of forward, of backward, and those of ``SOMETIMES`` that the curve has."""


class NamedCurve(Record):
    """A memory curve with indices of sizes instead of bytes: see :class:`memcheck.autograd.curve.Curve`."""

    saved_bytes: Bundle
    forward_peak: Bundle
    backward_peak: Bundle
    peak_before_loss: Bundle | None = None
    grad_hook_peak: Bundle | None = None
    later_grad_hook_peak: Bundle | None = None
    autocast_cache_bytes: int = NOTHING
    gradient_bytes: int = NOTHING
    until_backward_ends: int = NOTHING
    extra_output_bytes: int = NOTHING
    input_bytes: int = NOTHING
    freed_input_bytes: int = NOTHING
    input_gradient_bytes: int = NOTHING
    output_gradient_bytes: int = NOTHING
    left_gradient_bytes: int = NOTHING
    taken_gradient_bytes: int = NOTHING
    until_graph_freed: int = NOTHING
    weight_backward_bytes: int = NOTHING

    @property
    def passes_back(self) -> bool:
        """Whether the unit has a backward. A frozen unit with nothing trained before it has no graph, and no hooks."""
        return bool(self.saved_bytes.parts or self.backward_peak.parts)


_patterns: dict[CurvePattern, int] = {}
_by_number: list[CurvePattern] = []
_curves: dict[int, tuple[Curve, Sizes]] = {}
REMEMBERED = 16384


def forget() -> None:
    """Drop every cached curve."""
    _curves.clear()


def sizes_of(curve: Curve) -> Sizes:
    """Return the sizes of a curve from the cache, whose key is the identity of the curve; an entry keeps it alive."""
    entry = _curves.get(id(curve))
    if entry is None:
        if len(_curves) >= REMEMBERED:
            _curves.clear()
        entry = _curves[id(curve)] = (curve, _sizes(curve))
    return entry[1]


def _sizes(curve: Curve) -> Sizes:
    """Split a unit's memory curve into its pattern (which of its terms are not zero) and the terms' bytes.

    Curves of equal pattern share a recorded step, which is then evaluated with the bytes of each.
    """
    optional: list[Peak | None] = [getattr(curve, name) for name in SOMETIMES]
    highs = (curve.forward_peak, curve.backward_peak, *[peak for peak in optional if peak is not None])
    components_of = [curve.saved_components, *(peak.components for peak in highs)]
    scalars = [getattr(curve, name) for name in SCALARS]
    names = [tuple([name for name, _ in components]) for components in components_of]
    optional_names = iter(names[3:])
    present = tuple([None if peak is None else next(optional_names) for peak in optional])
    pattern = CurvePattern(names[0], names[1], names[2], present, tuple([bool(n) for n in scalars]))
    if pattern not in _patterns:
        _patterns[pattern] = len(_by_number)
        _by_number.append(pattern)
    numbers: list[int] = []
    totals: list[int] = []
    for components in components_of:
        component_bytes = [n_bytes for _, n_bytes in components]
        numbers += component_bytes
        totals.append(sum(component_bytes))
    numbers += [n_bytes for n_bytes in scalars if n_bytes]
    return Sizes(_patterns[pattern], (*numbers, *totals), highs)


def named_curve(pattern: int, first: int, high: int) -> tuple[NamedCurve, int, int]:
    """Build a memory curve whose fields are indices of sizes instead of bytes, for a record that many ranks share.

    ``pattern``: the number of its :class:`CurvePattern`. ``first``: the index of its first size. ``high``: the number
    of its first peak. Returns the curve, the index after its last size, and the number after its last peak.
    """
    recorded = _by_number[pattern]
    names = [
        recorded.saved,
        recorded.forward,
        recorded.backward,
        *[optional for optional in recorded.sometimes if optional is not None],
    ]
    count = sum(map(len, names)) + sum(recorded.scalars) + len(names)
    sizes: Iterator[int] = iter(range(first, first + count))
    components = [tuple([(name, next(sizes)) for name in of_part]) for of_part in names]
    scalars = {name: next(sizes) for name, present in zip(SCALARS, recorded.scalars, strict=True) if present}
    numbers = range(high - 1, high + len(names))
    bundles = [Bundle(component, next(sizes), number) for component, number in zip(components, numbers, strict=False)]
    saved, forward, backward = bundles[:3]
    optional_fields = [
        name for name, optional in zip(SOMETIMES, recorded.sometimes, strict=True) if optional is not None
    ]
    curve = NamedCurve(saved._replace(high=-1), forward, backward, **scalars)  # type: ignore[arg-type]
    curve = curve._replace(**dict(zip(optional_fields, bundles[3:], strict=True)))  # type: ignore[arg-type]
    return curve, first + count, high + len(names) - 1
