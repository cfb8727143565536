"""Results to JSON and back, byte for byte: what does not come back as it was is not kept.

No class is looked up by a name from the file: which record stands where is fixed here.
"""

from __future__ import annotations

from memcheck.accounts.dossier import Dossier, OnGpu, RankDevice
from memcheck.accounts.estimate import Estimate, Formula, HostMoment, Instant, Pools, RankEstimate, TensorGroup
from memcheck.edge import own_json
from memcheck.finding import Edit, FileEdits, Finding, Location, Remedy, Span
from memcheck.job.types import Assumption, Ground
from memcheck.result import Hidden, PlanResult

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Shape = type | tuple["Shape", ...] | list["Shape"]
    """A record, a tuple of so many shapes, or a tuple of any number of one shape (a list of it)."""

PLAIN: tuple[()] = ()
"""A tuple of what JSON has."""

FIELDS: dict[type, dict[str, Any]] = {
    PlanResult: {
        "estimate": Estimate,
        "assumptions": [Assumption],
        "findings": [Finding],
        "hidden": [Hidden],
        "rests_on": [Ground],
        "dossier": Dossier,
    },
    Estimate: {
        "interval_bytes": PLAIN,
        "needed_interval_bytes": PLAIN,
        "ranks": [RankEstimate],
        "largest": [TensorGroup],
        "formulas": [Formula],
        "host_components": [PLAIN],
        "host_moments": [HostMoment],
    },
    RankEstimate: {"pools": Pools, "instants": [Instant], "largest": [TensorGroup], "formulas": [Formula]},
    HostMoment: {"components": [PLAIN]},
    Hidden: {"finding": Finding},
    Finding: {"location": Location, "related": [(None, Location)], "fix": [Edit], "remedies": [Remedy]},
    Location: {"span": Span},
    Edit: {"span": Span},
    FileEdits: {"edits": [Edit]},
    Remedy: {
        "edits": [Edit],
        "interval_bytes": PLAIN,
        "needed_interval_bytes": PLAIN,
        "elsewhere": [FileEdits],
    },
    Dossier: {"ranks": [RankDevice], "gpus": [OnGpu]},
    OnGpu: {"assumed": PLAIN},
}
"""The fields that are more than JSON has; a record that is not listed has none. None, where a field may be, stays."""


def written(results: list[PlanResult]) -> str | None:
    """The results as one line of JSON; None where they would not come back as they are."""
    try:
        text = own_json.written(_with_files(results))
        again = read(own_json.parsed(text))
        one, other = (repr([each._replace(sources={}) for each in those]) for those in (again, results))
        same = one == other and all(a.sources == dict(b.sources) for a, b in zip(again, results, strict=True))
    except (TypeError, ValueError, RecursionError, IndexError):
        return None
    return text if same else None


def read(found: Any) -> list[PlanResult]:
    """The results that JSON holds; raises TypeError, ValueError, KeyError or IndexError where it holds none."""
    files, results = found
    lines = [tuple(each) for each in files]
    return [_with_sources(_READ_RESULT(each), lines) for each in results]


def _with_files(results: list[PlanResult]) -> list[object]:
    """The lines of every file, and the results, which name a file's lines by their number: many share them."""
    files: list[tuple[str, ...]] = []
    numbers: dict[int, int] = {}
    made: list[object] = []
    for result in results:
        sources: dict[str, int] = {}
        for path, lines in result.sources.items():
            if id(lines) not in numbers:
                numbers[id(lines)] = len(files)
                files.append(lines)
            sources[path] = numbers[id(lines)]
        made.append([*result[:_SOURCES], sources, *result[_SOURCES + 1 :]])
    return [files, made]


_SOURCES = PlanResult._fields.index("sources")


def _with_sources(result: PlanResult, files: list[tuple[str, ...]]) -> PlanResult:
    numbers: Any = result[_SOURCES]
    return result._replace(sources={path: files[number] for path, number in numbers.items()})


def _reader(shape: Any) -> Callable[[Any], Any]:
    """What makes a value of one shape from JSON."""
    if isinstance(shape, list):
        if shape[0] is PLAIN:
            return lambda value: tuple([tuple(each) for each in value]) if value else ()
        each = _reader(shape[0])
        return lambda value: tuple([each(item) for item in value]) if value else ()
    if shape == PLAIN and isinstance(shape, tuple):
        return tuple
    if isinstance(shape, tuple):
        parts = [None if part is None else _reader(part) for part in shape]
        return lambda value: tuple([part(item) if part else item for part, item in zip(parts, value, strict=True)])
    return _record_reader(shape)


def _record_reader(kind: Any) -> Callable[[Any], Any]:
    """What makes a record from the list of its fields, which it changes."""
    count = len(kind._fields)
    places = [(kind._fields.index(field), _reader(shape)) for field, shape in FIELDS.get(kind, {}).items()]
    new = tuple.__new__

    def make(values: Any) -> Any:
        if values is None:
            return None
        if type(values) is not list or len(values) != count:
            raise TypeError(f"no {kind.__name__}")
        for place, part in places:
            values[place] = part(values[place])
        return new(kind, values)

    return make


_READ_RESULT = _record_reader(PlanResult)
