from __future__ import annotations

import pytest

from memcheck.plan.finding import Span
from memcheck.plan.places import escape, tokens
from memcheck.plan.read import load_documents

TEXT = """\
# a comment
memcheck: 1
model:
  name: llama   # the model
  overrides: {num_hidden_layers: 12, list: [1, "two"]}
empty:
long: >
  some
  text
items:
  - a
  - key: b
    other: c

last: &anchor !!str end
"""


@pytest.fixture
def document():
    (document,) = load_documents("dir/plan.yaml", TEXT.encode())
    return document


def cut(span: Span, text: str = TEXT) -> str:
    lines = text.split("\n")
    if span.line == span.end_line:
        return lines[span.line - 1][span.column - 1 : span.end_column - 1]
    return "\n".join(
        [
            lines[span.line - 1][span.column - 1 :],
            *lines[span.line : span.end_line - 1],
            lines[span.end_line - 1][: span.end_column - 1],
        ]
    )


@pytest.mark.parametrize(
    ("pointer", "key", "value"),
    [
        ("/memcheck", "memcheck", "1"),
        ("/model", "model", 'name: llama   # the model\n  overrides: {num_hidden_layers: 12, list: [1, "two"]}'),
        ("/model/name", "name", "llama"),
        ("/model/overrides", "overrides", '{num_hidden_layers: 12, list: [1, "two"]}'),
        ("/model/overrides/num_hidden_layers", "num_hidden_layers", "12"),
        ("/model/overrides/list/1", None, '"two"'),
        ("/empty", "empty", ""),
        ("/items", "items", "- a\n  - key: b\n    other: c"),
        ("/items/1", None, "key: b\n    other: c"),
        ("/items/1/other", "other", "c"),
        ("/last", "last", "end"),
    ],
)
def test_marks_are_the_text_of_keys_and_values(document, pointer, key, value):
    """The spans of a pointer cut exactly its key and its value out of the file, without anchors, tags or blank lines."""
    mark = document.marks[pointer]
    assert (None if mark.key is None else cut(mark.key.span)) == key
    assert cut(mark.value.span) == value
    assert (mark.value.path, mark.value.note, mark.used_at) == ("dir/plan.yaml", "", None)


@pytest.mark.parametrize(
    ("pointer", "shown"),
    [
        ("/model/name", "llama"),
        ("/model", "model"),
        ("/model/overrides/list", '[1, "two"]'),
        ("/empty", "empty"),
        ("/long", "long"),
        ("/items", "items"),
        ("/items/0", "a"),
        ("", "memcheck"),
        ("/model/missing", "model"),
        ("/nothing/at/all", "memcheck"),
    ],
)
def test_locating_points_at_one_line(document, pointer, shown):
    """A scalar is pointed at itself, anything longer or empty at its key, what is missing at what it is missing from."""
    assert cut(document.locate(pointer).span) == shown


def test_every_value_has_a_mark(document):
    """Iterating gives a pointer for the document and for every key and item, parents first, in the order of the text."""
    pointers = list(document.marks)
    assert pointers[:5] == ["", "/memcheck", "/model", "/model/name", "/model/overrides"]
    assert len(pointers) == len(document.marks) == len(set(pointers)) == 17
    assert all(document.marks[pointer].value.span.line >= 1 for pointer in pointers)
    assert "/model/nothing" not in document.marks


def test_pointers_escape_slash_and_tilde():
    """Keys with a slash or a tilde are written as JSON pointers write them."""
    (document,) = load_documents("x.yaml", b"a/b: {c~d: 1}\n")
    assert escape("c~d/e") == "c~0d~1e"
    assert tokens("/a~1b/c~0d") == ["a/b", "c~d"]
    assert document.marks["/a~1b/c~0d"].value.span == (1, 12, 1, 13)


def test_columns_count_characters():
    """Accents and emoji in front of a value do not shift its column."""
    (document,) = load_documents("x.yaml", "été: {é: 🎉, b: c}\n".encode())
    assert document.marks["/été/b"].value.span == (1, 16, 1, 17)


@pytest.mark.parametrize("end", ["\r\n", "\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_line_ends_and_byte_order_mark_do_not_move_anything(end, mark):
    """Files from Windows or old Macs, with or without a byte order mark, have the same lines and columns."""
    (document,) = load_documents("x.yaml", (mark + TEXT.replace("\n", end)).encode())
    (plain,) = load_documents("x.yaml", TEXT.encode())
    assert document.values == plain.values
    assert document.sources == plain.sources
    assert all(document.marks[pointer] == plain.marks[pointer] for pointer in plain.marks)


def test_an_alias_is_placed_where_it_was_defined():
    """A value behind an alias is located at its definition, with the alias beside it."""
    (document,) = load_documents("x.yaml", b"a: &n 5\nb:\n  c: *n\n")
    mark = document.marks["/b/c"]
    assert mark.value.span == (1, 7, 1, 8)
    assert mark.value.note == "set at line 1 through `*n`"
    assert mark.used_at is not None
    assert mark.used_at.span == (3, 6, 3, 8)
    assert document.locate("/b/c") == mark.value


def test_merged_keys_are_placed_where_they_were_defined():
    """A key that a merge brought in is located at its definition; the mapping's own keys are not."""
    text = b"base: &base\n  x: 1\n  y: {z: 2}\nplan:\n  <<: *base\n  x: 3\n"
    (document,) = load_documents("x.yaml", text)
    merged, inner, own = (document.marks[pointer] for pointer in ("/plan/y", "/plan/y/z", "/plan/x"))
    assert inner.value == ("x.yaml", (3, 10, 3, 11), "set at line 3 through `<<: *base`")
    assert merged.key is not None
    assert merged.key.span == (3, 3, 3, 4)
    assert merged.used_at is not None
    assert merged.used_at.span == (5, 3, 5, 5)
    assert (own.value.span.line, own.value.note, own.used_at) == (6, "", None)


def test_a_list_of_merges_names_each_anchor():
    """The note names the anchor that a key came from."""
    text = b"a: &a {x: 1}\nb: &b {y: 1}\nc: {<<: [*a, *b]}\nd: &d {<<: *a}\ne: {<<: *d}\n"
    (document,) = load_documents("x.yaml", text)
    notes = [document.marks[pointer].value.note for pointer in ("/c/x", "/c/y", "/e/x")]
    assert notes == [f"set at line {n} through `<<: *{name}`" for n, name in ((1, "a"), (2, "b"), (1, "d"))]


def test_a_block_of_only_merged_keys_ends_at_its_merge_key():
    """The span of a mapping never leaves the place where it is written."""
    (document,) = load_documents("x.yaml", b"a: &a\n  x: 1\nb:\n  <<: *a\nc: 1\n")
    assert document.marks["/b"].value.span[::2] == (4, 4)
