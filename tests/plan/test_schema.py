from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import typing

import pytest
from jsonschema import Draft7Validator

import memcheck
from memcheck.plan import types
from memcheck.plan.schema import CHECKS, branches, conforms, integer_keys, load_schema, schema_path, target

SCHEMA = load_schema()
ANNOTATIONS = {"$schema", "title", "description", "examples", "default", "definitions", "x-memory", "x-memory-options"}
DEPENDENT = {"then", "else"}
"""Keywords that ``if`` reads."""


def nodes(schema, path=""):
    """Every schema inside a schema, with where it stands."""
    yield path, schema
    for keyword, value in schema.items():
        if keyword in {"properties", "definitions", "dependencies"}:
            for name, item in value.items():
                yield from nodes(item, f"{path}/{keyword}/{name}")
        elif keyword in {"anyOf", "oneOf"}:
            for number, item in enumerate(value):
                yield from nodes(item, f"{path}/{keyword}/{number}")
        elif keyword in {"items", "if", "then", "else", "not"}:
            yield from nodes(value, f"{path}/{keyword}")


NODES = dict(nodes(SCHEMA))


def properties():
    """Every key of the format that users write, with its schema behind references."""
    for path, schema in NODES.items():
        if not path.startswith("/definitions/complete"):
            for name, item in schema.get("properties", {}).items():
                yield name, target(item["$ref"], SCHEMA) if "$ref" in item else item


def test_the_schema_is_draft_07():
    """Editors read draft-07, so the schema is one, by name and by its metaschema."""
    Draft7Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert not {"$defs", "unevaluatedProperties"} & {keyword for node in NODES.values() for keyword in node}


def test_nothing_stands_beside_a_reference():
    """Draft-07 ignores siblings of $ref."""
    assert all(list(node) == ["$ref"] for node in NODES.values() if "$ref" in node)


def test_every_keyword_is_interpreted():
    """The fast validator knows every keyword of the schema that is no annotation."""
    known = ANNOTATIONS | CHECKS.keys() | DEPENDENT
    assert {keyword for node in NODES.values() for keyword in node} <= known


def test_every_interpreted_keyword_is_used():
    """The fast validator carries nothing that the schema does not need."""
    used = {keyword for node in NODES.values() for keyword in node}
    assert CHECKS.keys() <= used


def test_every_key_is_documented():
    """A key has a title, a description that ends as a sentence, and examples or a default."""
    for name, schema in properties():
        assert schema["title"], name
        assert schema["description"].endswith("."), name
        assert schema["examples"], name


def test_examples_and_defaults_are_valid():
    """What the documentation shows can be written."""
    for name, schema in properties():
        for value in [*schema["examples"], *([schema["default"]] if "default" in schema else [])]:
            assert conforms(value, schema, SCHEMA), name


def test_no_mapping_is_open_by_accident():
    """Unknown keys are errors everywhere, but in mappings whose keys other tools define."""
    inside = {path for path, node in NODES.items() if node.get("type") == "object" and not path.endswith("/if")}
    named = {path for path in inside if "properties" in NODES[path]}
    assert {path.rpartition("/")[2] for path in inside - named} == {"architecture", "overrides", "options"}
    assert all(NODES[path]["additionalProperties"] is False for path in named)


def test_unions_are_told_apart_by_type():
    """Each value has at most one branch of a union that it can mean."""
    for path, node in NODES.items():
        if "anyOf" in node and "/if" not in path and "/not" not in path:
            kinds = [each["type"] for each in branches(node, SCHEMA)]
            assert len(set(kinds)) == len(kinds), path
            assert not {"integer", "number"} <= set(kinds), path


def fields(schema):
    """The keys of a record: those of the one branch that is a mapping."""
    (record,) = [each for each in branches(schema, SCHEMA) if each.get("type") == "object"]
    return record["properties"]


def records(record, schema, path="plan"):
    """Pairs of a typed record and its part of the schema, from the plan down."""
    yield record, schema
    hints = typing.get_type_hints(record, localns={"Any": typing.Any})
    for name, item in fields(schema).items():
        for kind in (hints[name], *typing.get_args(hints[name])):
            if hasattr(kind, "_fields"):
                yield from records(kind, item, f"{path}.{name}")


def test_the_typed_plan_has_exactly_the_schemas_keys():
    """Schema and types cannot drift apart: the same names, in the same order where order was chosen."""
    for record, schema in records(types.Plan, SCHEMA):
        assert set(record._fields) == set(fields(schema)), record


def test_every_record_is_reached():
    """The comparison covers all typed records."""
    defined = {value for value in vars(types).values() if hasattr(value, "_fields")}
    assert {record for record, _ in records(types.Plan, SCHEMA)} == defined


def test_fields_with_default_none_are_the_optional_keys():
    """A typed field without a default is a key that a complete plan must state."""
    complete = target("#/definitions/complete", SCHEMA)
    assert {name for name in types.Plan._fields if name not in types.Plan._field_defaults} == {
        "memcheck",
        *complete["required"],
    }
    rough = target("#/definitions/complete_model", SCHEMA)["then"]["properties"]["rough"]["required"]
    assert [name for name in types.RoughSpec._fields if name not in types.RoughSpec._field_defaults] == rough


def test_integer_keys_are_those_typed_int():
    """The names that become int are the fields typed int, and none is also a fraction elsewhere."""
    typed = {"int": set(), "float": set()}
    for record, _ in records(types.Plan, SCHEMA):
        for name, hint in typing.get_type_hints(record, localns={"Any": typing.Any}).items():
            for kind in (hint, *typing.get_args(hint)):
                if kind in (int, float):
                    typed[kind.__name__].add(name)
    assert integer_keys() == typed["int"] - {"memcheck"}
    assert not typed["int"] & typed["float"]


def test_the_schema_file_is_found_and_stable():
    """The file is the one at the top of the repository, written with two spaces, keys in reading order."""
    with open(schema_path(), encoding="utf-8") as file:
        assert json.load(file) == SCHEMA
    assert list(SCHEMA["properties"])[:3] == ["memcheck", "name", "description"]


@pytest.mark.slow
@pytest.mark.parametrize("inside", [True, False])
def test_the_schema_is_found_in_a_wheel_and_in_a_checkout(tmp_path, inside):
    """An installed package carries the schema inside itself; in a repository it lies beside the package."""
    package = tmp_path / "memcheck"
    shutil.copytree(
        os.path.dirname(memcheck.__file__), package, ignore=shutil.ignore_patterns("schemas", "__pycache__")
    )
    shutil.copytree(os.path.dirname(schema_path()), (package if inside else tmp_path) / "schemas")
    code = "from memcheck.plan.schema import load_schema, schema_path; load_schema(); print(schema_path())"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}  # set for a pool's processes
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == str((package if inside else tmp_path) / "schemas" / "plan.schema.json")
