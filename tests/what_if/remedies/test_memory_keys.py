"""Every key of a plan that moves memory and keeps the result is changed by some search, or is listed with a reason."""

from __future__ import annotations

from typing import Any

import pytest

from docs import memory_keys
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.types import InferenceJob
from memcheck.what_if.remedies.candidates import LOWER
from memcheck.what_if.remedies.price import Pricer
from memcheck.what_if.search.space import singles
from tests.what_if.remedies.search_cases import PLANS, UNSEARCHED, UNSEARCHED_OPTIONS
from tests.what_if.search.contexts import context_of

SCHEMA = memory_keys.plan_schema()
KEYS = memory_keys.keys_of(SCHEMA)
ANNOTATED = memory_keys.annotations(SCHEMA)
OPTIONS = "training.options"
CONTEXTS = {name: context_of(text) for name, text in PLANS.items()}
OFFERED = {name: singles(context) for name, context in CONTEXTS.items()}


def searched() -> set[str]:
    """Keys that the searches for some plan change, each under its full dotted name."""
    found: set[str] = set()
    for offered in OFFERED.values():
        for each in offered:
            for key in each.set:
                found.add({"training.base": "training.base.held_in", "hardware.gpu": "hardware.gpu.name"}.get(key, key))
    return found


FOUND = searched()


def test_every_key_is_searched_or_listed() -> None:
    """A new key of the schema has to be changed by a search, or to be listed with the reason why none changes it."""
    keys = {key for key in KEYS if key != OPTIONS}
    assert keys - FOUND == {key for keys in UNSEARCHED.values() for key in keys}
    assert not FOUND & {key for keys in UNSEARCHED.values() for key in keys}


def test_every_option_is_searched_or_listed() -> None:
    """Likewise of the options of the frameworks, but for those that a profile calls harmless or has no model of."""
    known = {
        name
        for profile in FRAMEWORKS.values()
        for name in profile.options
        if name not in profile.harmless and name not in profile.unmodelled
    }
    touched = {key.removeprefix(f"{OPTIONS}.") for key in FOUND if key.startswith(f"{OPTIONS}.")}
    listed = [name for names in UNSEARCHED_OPTIONS.values() for name in names]
    assert len(listed) == len(set(listed))
    assert known - touched == set(listed)


def test_what_is_searched_is_annotated() -> None:
    """A key that a search changes says in the schema which way it moves memory, and whether results stay the same."""
    hardware = {key for key in FOUND if key.startswith("hardware.")}
    assert FOUND - hardware <= ANNOTATED.keys()


def test_annotations_are_of_one_form() -> None:
    """``lower`` is a direction, values, or values with words; ``result`` is ``same`` or ``other``."""
    for key, each in ANNOTATED.items():
        assert set(each) == {"lower", "result"}, key
        assert each["result"] in ("same", "other"), key
        assert each["lower"] in ("less", "more") or (each["lower"] and isinstance(each["lower"], list | dict)), key


def test_changes_keep_what_the_schema_says() -> None:
    """A change that keeps the results sets keys that the schema says keep them."""
    for name in PLANS:
        context = CONTEXTS[name]
        other = {key for key, each in ANNOTATED.items() if each["result"] == "other"}
        for each in OFFERED[name]:
            if each.cost == 0 and not isinstance(context.job, InferenceJob):
                assert not other & set(each.set), each.title


@pytest.mark.parametrize("key", LOWER)
def test_derived_changes_are_offered_where_they_count(key: str) -> None:
    """For each derived key some plan is offered its values, none of which the plan has already."""
    mine: list[Any] = [each.set[key] for offered in OFFERED.values() for each in offered if key in each.set]
    assert mine
    assert set(mine) <= {value for value, _ in LOWER[key][1]}


@pytest.mark.parametrize("key", LOWER)
def test_derived_changes_free_memory(key: str) -> None:
    """What the schema says of a value is true: of some plan it lowers the figure."""
    for name, context in CONTEXTS.items():
        assert context.estimate is not None
        for each in OFFERED[name]:
            priced = Pricer(context).price(each, prune=False) if key in each.set else None
            if priced is not None and priced.estimate.needed_bytes < context.estimate.needed_bytes:
                return
    pytest.fail(f"no plan needs less with another {key}")


def test_every_reason_is_given() -> None:
    """No list of keys is without words."""
    assert all(len(why.split()) > 2 for why in (*UNSEARCHED, *UNSEARCHED_OPTIONS))
