from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memcheck.plan.read import load_documents
from memcheck.plan.sniff import looks_like_plan
from tests.plan.samples import VALID


@pytest.mark.parametrize(
    "text",
    [
        *VALID,
        "\ufeffmemcheck: 1\n",
        "memcheck: 1\r\nmodel: a\r\n",
        "# comment\n\n---\nmemcheck: 1\n",
        "%YAML 1.2\n---\nmemcheck: 1\n",
        '"memcheck": 1\n',
        "'memcheck' : 1\n",
        "name: x\nmodel: y\nmemcheck: 1",
        "other: document\n---\nmemcheck: 1\n",
        "memcheck: 2\n",
        'memcheck: "1"\n',
        "memcheck: v1\n",
        "memcheck:\nmodel: a\n",
        "memcheck: # to do\nmodel: a\n",
        "model: a\nmemcheck:",
        "memcheck:\t1\n",
        '{"memcheck": 1, "model": "a"}',
        '{"name": "{", "model": {"name": "a"}, "memcheck": 1}',
        "# flow\n{memcheck: 1}\n",
        "memcheck: !!int 1\n",
        "memcheck: &version 1\n",
        "a: &v 1\nmemcheck: *v\n",
        "memcheck: >-\n  1\n",
        "memcheck: |\n  1\n",
        "  memcheck: 1\n  model: a\n",
        "memcheck:\n\n ",
        "name: x\n---\n  memcheck: 1\n",
        "--- !plan\n  memcheck: 1\n",
        "--- &top {memcheck: 1}\n",
        "? memcheck\n: 1\n",
        "!!str memcheck: 1\n",
        "&key memcheck: 1\n",
        "name: &key memcheck\n*key : 1\n",
        "<<: {memcheck: 1}\nmodel: a\n",
        "base: &base\n  memcheck: 1\n<<: *base\n",
        "base: &base\n  memcheck: 1\n<<: [*base]\n",
        "memcheck\t: 1\n",
        "memcheck: !!str\n  1\n",
        "memcheck:\n  1\n",
        '"mem\\u0063heck": 1\n',
        '"\\x6d\\x65\\x6D\\U00000063heck": 1\n',
        '? "mem\\\n  check"\n: 1\n',
        "name: x\u2028memcheck: 1\n",
        "name: x\x85memcheck: 1\n",
        "name: x\rmemcheck: !!int 1\r",
        "  memcheck: 1\n  model: [a\n",
        "  memcheck: 1\n  model: \x01\n",
        "{memcheck: 1, memcheck: {a: 1}}",
        "  memcheck: 1\n  memcheck: {a: 1}\n",
    ],
)
def test_plans_are_recognised(text):
    """A top-level `memcheck` key makes a plan, wherever it stands and however it is written."""
    assert looks_like_plan(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "name: x\n",
        "jobs:\n  memcheck: 1\n",
        "# memcheck: 1\n",
        "memcheck-options: 1\n",
        "my memcheck: 1\n",
        "memcheck:1\n",
        "repos:\n- repo: x\n  hooks: [{id: memcheck}]\n",
        "memcheck:\n  stage: test\n  script: valgrind ./a.out\n",
        "memcheck:\n\n  script: valgrind ./a.out\n",
        "memcheck:  # valgrind\n  # indented\n  script: x\n",
        "memcheck: &job\n  script: x\n",
        "memcheck: *job\n",
        "memcheck: {script: x}\n",
        '{"jobs": {"memcheck": 1}}',
        '{"a": "memcheck: 1"}',
        '{"my-memcheck": 1}',
    ],
)
def test_other_yaml_is_left_alone(text):
    """A nested or commented key, or a section of that name in some other tool's file, makes no plan."""
    assert not looks_like_plan(text.encode())


@pytest.mark.parametrize(
    "data",
    [
        b"\0\xff memcheck",
        b"{" * 100_000 + b"memcheck",
        b"{" * 1_000_000 + b"memcheck",
        b"? " * 500_000 + b"memcheck",
        b"- " * 500_000 + b"memcheck",
        b"\\\n" * 500_000,
        b'"' + b"m\\\n" * 300_000 + b'"',
        b"memcheck:" + b"\n" * 100_000 + b" {}",
    ],
)
def test_anything_can_be_sniffed(data):
    """Binary and hostile input is answered, quickly."""
    assert not looks_like_plan(data)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("text", ["memcheck: 1\n", "  memcheck: !!int 1\n"])
def test_plans_in_other_encodings_are_recognised(text, encoding):
    """A plan that is not UTF-8 is taken for one, so that its encoding is reported."""
    assert looks_like_plan(text.encode(encoding))
    assert not looks_like_plan(text.replace("memcheck", "memory").encode(encoding))


TOKENS = [
    *("memcheck", "memcheck: 1", '"memcheck"', "'memcheck'", '"mem\\u0063heck"', '"mem\\\n check"', "name", "1"),
    *(":", ": ", ",", " ", "  ", "\n", "\n  ", "\r", "\r\n", "\u2028", "\x85", "\t", "{", "}", "[", "]", "- ", "? "),
    *(
        "&a ",
        "*a",
        "*a : ",
        "<<: ",
        "<<",
        "!!str ",
        "!!int ",
        "!x ",
        "|\n  ",
        ">-\n  ",
        "#",
        "\n---\n",
        "--- ",
        "...\n",
    ),
    *("%YAML 1.1\n---\n", "\ufeff"),
]
"""What YAML is made of, as far as it bears on where a key stands."""

PARTS = st.lists(st.sampled_from(TOKENS), max_size=14).map("".join)
KEYS = st.sampled_from(
    ["memcheck", '"memcheck"', "'memcheck'", "!!str memcheck", "&k memcheck", '"\\x6demcheck"', '"memchec\\u006b"']
)
VALUES = st.sampled_from(["1", " 1", "!!int 1", "&v 1", "|\n   1", ">-\n   1", "", "'1'", '"1"', "[1]", "{a: 1}", "*v"])
BEFORE = st.sampled_from(
    ["", "name: x\n", "a: &v 1\n", "---\n", "%YAML 1.1\n---\n", "a: 1\n---\n", "# x\n", "\ufeff", "{", "? "]
)
MAPPINGS = st.builds(
    lambda before, indent, key, colon, value, after: (
        before.replace("\n", f"\n{indent}") + indent + key + colon + value + after
    ),
    BEFORE,
    st.sampled_from(["", " ", "   "]),
    KEYS,
    st.sampled_from([": ", " : ", ":\n   ", "\n: "]),
    VALUES,
    st.sampled_from(["", "\n", "}", "\nmodel: a\n", "\n  model: a\n"]),
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.one_of(PARTS, MAPPINGS), st.sampled_from(["\n", "\r\n", "\r"]))
def test_whatever_is_read_as_a_plan_is_not_skipped(text, line_end):
    """No text that the parser reads as a mapping with a `memcheck` value at its top passes for something else."""
    data = text.replace("\n", line_end).encode()
    documents = [each.values for each in load_documents("a.yaml", data)]
    plans = [each for each in documents if isinstance(each, dict) and "memcheck" in each]
    if any(not isinstance(each["memcheck"], (dict, list)) for each in plans):
        assert looks_like_plan(data)
