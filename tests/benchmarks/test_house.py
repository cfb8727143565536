"""The measures of the code's shape that may not get worse."""

from __future__ import annotations

import ast
from functools import cache

import pytest

from benchmarks.house import circles, imports, optional_fields, setters, texts_of_modules


@cache
def trees() -> dict[str, ast.Module]:
    """Every module of the package by its name."""
    return {name: ast.parse(text) for name, text in texts_of_modules().items()}


@pytest.mark.slow
def test_an_optional_field_of_a_shared_model_record_has_two_users() -> None:
    """What one family alone sets is a record or a type of its own, and no field that every model has."""
    texts = texts_of_modules()
    models = {name: text for name, text in texts.items() if name.startswith(("memcheck.models", "memcheck.families"))}
    fields = optional_fields({name: trees()[name] for name in models})
    assert len(fields) > 50
    assert {field for field in fields if setters(field, models) <= 1} == set()


@pytest.mark.slow
def test_no_circle_of_imports_inside_a_room_has_more_than_three_files() -> None:
    """Files that all reach one another are understood only together, so they are few."""
    edges = imports(trees())
    assert [found for found in circles(edges) if len(found) > 3] == []
