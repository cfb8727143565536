from __future__ import annotations

import copy
import json
import math
import re

import pytest
import yaml
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator

from memcheck.plan.schema import conforms, load_schema
from tests.plan.samples import ARCHITECTURE, FULL, SERVING, SMALL, VALID

SCHEMA = load_schema()
COMPLETE = {**SCHEMA, "if": {"not": {}}}
PLANS = [yaml.safe_load(text) for text in VALID]
ODD = [None, True, False, 0, 1, -1, 1.0, 4.0, 4.5, 0.0, 1e300, 10**30, math.nan, math.inf, -math.inf, "", "auto", "none", "90%", "8B", "100.0%", "0%", "full", "layers:1-2", "layers:", [], ["embed"], [1], {}, {"name": "x"}, {"mode": "full"}, {"a": {"b": [None]}}]  # fmt: skip
KEYS = sorted(
    {
        name
        for plan in PLANS
        for name in (
            "nme",
            "memcheck",
            "rough",
            "architecture",
            "overrides",
            "extends",
            "source",
            "global_batch_size",
            "modules",
            *plan,
        )
    }
)


def paths(value, path=()):
    """Every place in a plan."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from paths(item, (*path, key))


def put(plan, path, change):
    """A copy of a plan with one place changed."""
    if not path:
        return change(plan)
    plan = copy.deepcopy(plan)
    inside = plan
    for key in path[:-1]:
        inside = inside[key]
    result = change(inside[path[-1]])
    if result is DROP:
        del inside[path[-1]]
    else:
        inside[path[-1]] = result
    return plan


DROP = object()


@st.composite
def mutations(draw):
    """A valid plan with up to three changes: wrong values, unknown or moved keys, dropped keys."""
    plan = draw(st.sampled_from(PLANS))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(paths(plan))))
        odd = draw(st.sampled_from(ODD) | st.integers() | st.floats() | st.text(max_size=5))
        key = draw(st.sampled_from(KEYS))
        how = draw(st.sampled_from(["replace", "add", "drop"]))
        if how == "drop" and path:
            plan = put(plan, path, lambda _: DROP)
        elif how == "add":
            plan = put(plan, path, lambda old, key=key, odd=odd: {**old, key: odd} if isinstance(old, dict) else odd)
        else:
            plan = put(plan, path, lambda _, odd=odd: odd)
    return plan


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(mutations(), st.sampled_from([SCHEMA, COMPLETE]))
@example(4, SCHEMA)
@example({"memcheck": True}, SCHEMA)
@example({"memcheck": 1.0, "extends": "x"}, SCHEMA)
def test_the_fast_validator_agrees_with_jsonschema(plan, schema):
    """On any damaged plan the fast answer is the library's."""
    assert conforms(plan, schema, schema) == Draft7Validator(schema).is_valid(plan)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted({path for plan in PLANS for path in paths(plan)}, key=str)), st.sampled_from(ODD))
def test_both_agree_on_every_value_at_every_key(path, odd):
    """One odd value at one key at a time, so that no other mistake decides the answer."""
    for plan in PLANS:
        if path in list(paths(plan)):
            changed = put(plan, path, lambda _: odd)
            assert conforms(changed, SCHEMA, SCHEMA) == Draft7Validator(SCHEMA).is_valid(changed)


@pytest.mark.parametrize("text", VALID)
def test_valid_plans_conform(text):
    """The plans that other tests start from are valid."""
    plan = yaml.safe_load(text)
    assert conforms(plan, SCHEMA, SCHEMA)
    assert Draft7Validator(SCHEMA).is_valid(plan)


@settings(max_examples=20)
@given(mutations())
def test_the_corpus_holds_both_kinds(plan):
    """Damage is not always harmless: the agreement above is about more than one answer."""
    assume(not conforms(plan, SCHEMA, SCHEMA))
    assert not Draft7Validator(SCHEMA).is_valid(plan)


@pytest.mark.parametrize(
    ("section", "key", "value", "valid"),
    [
        ("parallelism", "tensor", 4.0, True),
        ("parallelism", "tensor", 4.5, False),
        ("parallelism", "tensor", True, False),
        ("parallelism", "tensor", 0, False),
        ("parallelism", "tensor", "4", False),
        ("parallelism", "data", "auto", True),
        ("parallelism", "data", 2, True),
        ("parallelism", "data", "automatic", False),
        ("parallelism", "sequence", 1, False),
        ("parallelism", "zero_stage", 4, False),
        ("training", "expandable_segments", "auto", True),
        ("training", "expandable_segments", None, False),
        ("training", "precision", {}, False),
        ("training", "precision", "bf16", False),
        ("training", "freeze", ["layers:0-24", "model.layers.3"], True),
        ("training", "freeze", ["layers:24"], False),
        ("training", "options", {"anything": {"at": ["all"]}}, True),
        ("training", "expert_imbalance", 0.5, False),
        ("policy", "fail_above", "100%", True),
        ("policy", "fail_above", "0%", False),
        ("policy", "fail_above", "101%", False),
        ("policy", "fail_above", 1, True),
        ("policy", "fail_above", 0, False),
        ("policy", "fail_above", 90, False),
        ("policy", "overhead", 0, True),
        ("policy", "overhead", "modelled", False),
    ],
)
def test_what_keys_take(section, key, value, valid):
    """The format's own decisions, one value at a time."""
    plan = yaml.safe_load(SMALL)
    plan.setdefault(section, {})[key] = value
    assert conforms(plan, SCHEMA, SCHEMA) is valid


@pytest.mark.parametrize(
    ("text", "path", "change", "valid"),
    [
        (SMALL, ("training",), lambda _: DROP, False),
        (SMALL, ("training", "sequence_length"), lambda _: DROP, False),
        (SMALL, ("model",), lambda _: {"name": "a", "config": "b"}, False),
        (SMALL, ("model",), lambda _: {"config": "b", "overrides": {}}, True),
        (SMALL, ("model",), lambda _: {"overrides": {"x": 1}}, False),
        (ARCHITECTURE, ("model",), lambda old: {**old, "overrides": {"x": 1}}, False),
        (ARCHITECTURE, ("training",), lambda old: {**old, "gradient_accumulation_steps": 2}, False),
        (SERVING, ("model", "rough", "parameters"), lambda _: "0.5B", True),
        (SERVING, ("model", "rough", "parameters"), lambda _: "8G", False),
        (SERVING, ("model", "rough", "layers"), lambda _: DROP, False),
        (SERVING, (), lambda old: {**old, "training": {"micro_batch_size": 1, "sequence_length": 1}}, False),
        (FULL, ("training", "activation_checkpointing"), lambda old: {**old, "modules": ["mlp"]}, False),
    ],
)
def test_what_goes_together(text, path, change, valid):
    """What must be stated, and what excludes each other."""
    assert conforms(put(yaml.safe_load(text), path, change), SCHEMA, SCHEMA) is valid


@pytest.mark.parametrize("base", [{"extends": "base.yaml"}, {"source": {"axolotl": "train.yml"}}])
def test_an_incomplete_plan_is_valid_to_editors_while_something_completes_it(base):
    """A file that extends a base may leave out anything; what it does state has to be right."""
    assert conforms({"memcheck": 1, **base}, SCHEMA, SCHEMA)
    assert not conforms({"memcheck": 1, **base}, COMPLETE, COMPLETE)
    assert not conforms({"memcheck": 1, **base, "training": {"compile": 1}}, SCHEMA, SCHEMA)


PATTERNS = sorted({json.loads(f'"{found}"') for found in re.findall(r'"pattern": "(.*?)"[,}]', json.dumps(SCHEMA))})


@pytest.mark.slow
@pytest.mark.parametrize("pattern", PATTERNS)
@settings(max_examples=40)
@given(data=st.data())
def test_patterns_match_as_python_has_it(pattern, data):
    """Short values are matched without Python's pattern engine, which takes longer to load than a plan to check."""
    value = data.draw(st.from_regex(pattern) | st.text("0159.%:-aLM ", max_size=8) | st.text(max_size=120))
    assert conforms(value, {"pattern": pattern}, SCHEMA) is (re.search(pattern, value) is not None)
