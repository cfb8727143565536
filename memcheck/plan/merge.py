"""The merge key ``<<``: join mappings by reference."""

from __future__ import annotations

from typing import Any

from memcheck.plan import codes
from memcheck.plan.compose import ComposeProblem
from memcheck.plan.places import Collection, Entry, Via


def merge(
    merges: list[tuple[Any, Any, Any, Via | None]], problems: list[ComposeProblem]
) -> tuple[dict[str, Entry], dict[str, object]]:
    """The entries and values that merge keys bring into one mapping; of several, the first that has a key wins."""
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
    """An entry as seen from the mapping it is merged into; one that was written inside the merge key is its own."""
    key, place, via = entry
    return (key, place, Via("", key_event, f"<<: {through}")) if through else (key, place, via)


def _not_a_mapping(key_event: Any, place: Any) -> ComposeProblem:
    at = place.start if isinstance(place, Collection) else place
    message = "`<<` takes a mapping or a list of mappings"
    return ComposeProblem(
        codes.INVALID_YAML, message, key_event, help="write `<<: *anchor`", related=(("this is none", at),)
    )
