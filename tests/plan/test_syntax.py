from __future__ import annotations

import pytest
import yaml

from memcheck.plan import compose
from memcheck.plan.read import load_documents

BROKEN = [
    ("a:\n\tb: 1\n", 2, 1, "a tab cannot indent YAML"),
    ("\ta: 1\n", 1, 1, "a tab cannot indent YAML"),
    ("a: 1\n\tb: 2\n", 2, 1, "a tab cannot indent YAML"),
    ("a: |\n  b\n\tc\n", 3, 1, "a tab cannot indent YAML"),
    ("a: *.py\n", 1, 5, "there is no name"),
    ("a: | text\n", 1, 6, "text cannot follow `|`"),
    ("a: 'x' y\n", 1, 8, "something follows the end of the value"),
    ("a: [b]]\n", 1, 7, "something follows the end of the value"),
    ("a: b: c\n", 1, 5, "a `:` makes no key here"),
    ("a: 1\n  b: 2\n", 2, 4, "a `:` makes no key here"),
    ("a: 1\nb: [1, 2\nc: 3\n", 2, 4, "the `[` opened here is not closed"),
    ("a: {b: 1\nc: 2\n", 1, 4, "the `{` opened here is not closed"),
    ("a: 'x\nb: 2\n", 1, 4, "the quote opened here is not closed"),
    ("a: 1\nsome words\nb: 2\n", 2, 1, "this line has no `:`"),
    ("a: @x\n", 1, 4, "a value cannot start with `@`"),
    ("a: `x`\n", 1, 4, "a value cannot start with ```"),
    ("a:\n    b: 1\n  c: 2\n", 3, 3, "does not belong to the mapping above it"),
    ("- a\nb: 1\n", 2, 1, "does not belong to the list above it"),
    ("a: }\n", 1, 4, "a value is missing here"),
    ('a: "\\q"\n', 1, 5, "this backslash escape does not exist"),
    ("a: !x!y 1\n", 1, 4, "a `!` starts a tag"),
    ("a: 1\n...\nb: 2\n", 3, 1, "something follows the end of the document"),
    ("a: - b\n", 1, 4, "a list cannot start here"),
    ("a: b\x07\n", 1, 5, "control character U+0007"),
    ("%YAML 3.0\n---\na: 1\n", 1, 1, "incompatible"),
]


@pytest.mark.parametrize(("text", "line", "column", "words"), BROKEN)
def test_syntax_errors_say_what_is_wrong_and_where(text, line, column, words):
    """Each mistake of YAML is one finding at the character to change, in words that need no knowledge of the parser."""
    document = load_documents("x.yaml", text.encode())[-1]
    (finding,) = document.findings
    assert (finding.code, finding.name, finding.severity) == ("MEM002", "invalid-yaml", "error")
    assert words in finding.message
    assert (finding.location.span.line, finding.location.span.column) == (line, column)
    assert document.values is None


@pytest.mark.parametrize("text", [text for text, *_ in BROKEN])
def test_the_pure_python_parser_says_the_same(monkeypatch, text):
    """Without libyaml, as on the web page, a broken file has the same finding at the same place."""
    usual = load_documents("x.yaml", text.encode())[-1].findings
    monkeypatch.setattr(compose, "Parser", yaml.SafeLoader)
    assert load_documents("x.yaml", text.encode())[-1].findings == usual


def test_an_error_at_the_end_of_the_file_is_shown_in_the_text():
    """A location behind the last line would have nothing to show."""
    (document,) = load_documents("x.yaml", b"a: 1\nb: [")
    (finding,) = document.findings
    assert finding.location.span.line == 2
