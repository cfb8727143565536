from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from memcheck.plan import compose
from memcheck.plan.read import load_documents
from tests.plan.samples import VALID


def load(text: str):
    (document,) = load_documents("x.yaml", text.encode())
    return document


@pytest.mark.parametrize("text", VALID)
def test_plans_read_as_pyyaml_reads_them(text):
    """Composing by events gives the values of yaml.safe_load."""
    assert load(text).values == yaml.safe_load(text)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)
)


@pytest.mark.slow
@given(st.dictionaries(st.text(), VALUES, min_size=1, max_size=5), st.sampled_from([None, True, False]))
def test_whatever_pyyaml_writes_is_read_back(values, flow):
    """Any data written by PyYAML, in block or flow style, with any quoting, comes back as PyYAML reads it."""
    text = yaml.safe_dump(values, default_flow_style=flow, allow_unicode=True)
    assert load(text).values == yaml.load(text, Loader=yaml.CSafeLoader)


@pytest.mark.parametrize("text", VALID)
def test_the_pure_python_parser_gives_the_same(monkeypatch, text):
    """Where PyYAML was built without libyaml, values and places are the same."""
    fast = load(text)
    monkeypatch.setattr(compose, "Parser", yaml.SafeLoader)
    slow = load(text)
    assert slow.values == fast.values
    assert {pointer: fast.locate(pointer) for pointer in fast.marks} == {
        pointer: slow.locate(pointer) for pointer in slow.marks
    }


def test_the_last_of_two_equal_keys_wins_and_is_a_finding():
    """A duplicate key is an error at the second, with the first beside it."""
    text = "memcheck: 1\nmodel: a\nmemcheck: 2\n"
    document = load(text)
    (finding,) = document.findings
    assert document.values == {"memcheck": 2, "model": "a"}
    assert (finding.code, finding.name, finding.location.span) == ("MEM003", "duplicate-key", (3, 1, 3, 9))
    ((label, first),) = finding.related
    assert (label, first.span.line) == ("first set here", 1)


def test_keys_are_text_whatever_they_look_like():
    """Keys are names: `on`, `1` and an empty key are not turned into other types."""
    assert load("on: 1\n1: 2\n~: 3\n? \n: 4\n").values == {"on": 1, "1": 2, "~": 3, "": 4}


@pytest.mark.parametrize("text", ["? [a]\n: 1\n", "{a: 1}: 2\n", "a: &x [1]\n*x : 2\n"])
def test_a_collection_is_no_key(text):
    """A mapping or sequence as a key is a located error."""
    (finding,) = load(text).findings
    assert finding.code == "MEM002"
    assert "key" in finding.message


def test_merge_keys_follow_yaml():
    """A mapping's own keys win over merged ones, and of merged ones the first in the list."""
    text = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc:\n  <<: [*a, *b]\n  x: 0\nd: {<<: *b}\n"
    document = load(text)
    assert document.values == yaml.safe_load(text)
    assert document.values["c"] == {"x": 0, "y": 1, "z": 2}
    assert not document.findings


def test_two_merge_keys_are_a_duplicate():
    """A second `<<` in one mapping is reported like any key that is set twice."""
    text = "a: &a {x: 1}\nb: &b {x: 2}\nc:\n  <<: *a\n  <<: *b\n"
    document = load(text)  # PyYAML takes the last one up to 6.0.3, and the first one since
    assert document.values["c"] in ({"x": 1}, {"x": 2})
    assert [finding.code for finding in document.findings] == ["MEM003"]


def test_a_quoted_merge_key_is_a_key():
    """Only an unquoted `<<` merges."""
    assert load('a: &a {x: 1}\nb: {"<<": *a}\n').values["b"] == {"<<": {"x": 1}}


def test_merging_something_else_is_a_finding():
    """`<<` takes mappings."""
    (finding,) = load("a: &a 5\nb:\n  <<: *a\n").findings
    assert (finding.code, finding.location.span.line) == ("MEM002", 3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: *nothing\n", "no `&nothing` above it"),
        ("a: &x 1\nb: *y\n", "no `&y` above it"),
        ("a: &x [1, *x]\n", "inside the value it repeats"),
    ],
)
def test_aliases_that_lead_nowhere_are_findings(text, words):
    """An alias without its anchor, or inside of it, is an error at the alias."""
    (finding,) = load(text).findings
    assert finding.code == "MEM002"
    assert words in finding.message


def test_an_alias_bomb_is_refused():
    """Aliases that repeat each other are counted as if written out, long before memory is short."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)]
    (finding,) = load("\n".join(lines)).findings
    assert (finding.code, finding.name) == ("MEM007", "too-complex")
    assert finding.location.span.line <= len(lines)
    assert "20,000" in finding.message


def test_many_values_are_refused():
    """A document of more values than any plan has is refused, not checked for minutes."""
    (finding,) = load("a: [" + "1," * 30_000 + "]").findings
    assert finding.code == "MEM007"


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
def test_deep_nesting_is_refused(opening):
    """Ten thousand levels end in a finding, not in a crash of the interpreter."""
    (finding,) = load(opening * 10_000).findings
    assert (finding.code, "100 levels" in finding.message) == ("MEM007", True)


def test_deep_indentation_is_refused():
    """Block style is counted like flow style."""
    (finding,) = load("\n".join(" " * i + "a:" for i in range(1000))).findings
    assert finding.code == "MEM007"


def test_a_hundred_levels_are_read():
    """The cap is a cap, not an estimate."""
    assert not load("[" * 100 + "]" * 100).findings


def test_documents_are_numbered_and_empty_ones_left_out():
    """Several documents keep their number in the file; one without content is no document."""
    documents = load_documents("x.yaml", b"a: 1\n---\n# nothing\n---\nb: 2\n...\n---\n")
    assert [(each.index, each.values) for each in documents] == [(0, {"a": 1}), (2, {"b": 2})]


def test_documents_before_a_broken_one_are_kept():
    """A syntax error ends the file at its document; what stands before it is still checked."""
    first, second = load_documents("x.yaml", b"a: 1\n---\nb: [\n---\nc: 3\n")
    assert first.values == {"a": 1}
    assert (second.index, second.values, second.findings[0].code) == (1, None, "MEM002")
    assert second.locate("/anything").path == "x.yaml"


@pytest.mark.parametrize("data", [b"", b"# only a comment\n", b"---\n...\n", b"\xef\xbb\xbf"])
def test_a_file_without_content_has_no_documents(data):
    """Nothing to check is not an error of the reader."""
    assert load_documents("x.yaml", data) == []


@pytest.mark.parametrize("anchor", ["b: &b 1", "b: &b {c: 1}", "b: &b [1]"])
def test_an_anchor_ends_with_its_document(anchor):
    """What is set in an earlier document is shown, and that it cannot be repeated in this one."""
    *_, last = load_documents("x.yaml", f"{anchor}\n---\nx: 1\n---\na: *b\n".encode())
    (finding,) = last.findings
    assert "`&b` belongs to an earlier document" in finding.message
    ((label, at),) = finding.related
    assert (label, at.span.line, at.span.column) == ("`&b` is set here", 1, 7)
    assert "`---`" in finding.help
