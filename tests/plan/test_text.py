from __future__ import annotations

import pytest

from memcheck.plan.read import load_documents
from memcheck.plan.text import MAX_BYTES, decode, read_bytes


@pytest.mark.parametrize(
    ("data", "line", "column", "words"),
    [
        (b"a: 1\nb: \0\n", 2, 4, "zero byte"),
        (b"\x7fELF\x02\x01\x01\0\0", 1, 8, "binary"),
        (b"a: 1\nb\xc3\xa9: \xe9\n", 2, 5, "0xe9 is not UTF-8"),
        (b"a: 1\r\nb: \xff\r\n", 2, 4, "0xff"),
        ("a: 1\n".encode("utf-16"), 1, 1, "UTF-16"),
        ("a: 1\n".encode("utf-16-be"), 1, 1, "zero byte"),
    ],
)
def test_what_is_no_utf8_text_is_located(data, line, column, words):
    """Binary files and other encodings are an error at the byte that shows it."""
    (document,) = load_documents("x.yaml", data)
    (finding,) = document.findings
    assert (finding.code, finding.name) == ("MEM001", "unreadable-file")
    assert (finding.location.span.line, finding.location.span.column) == (line, column)
    assert words in finding.message
    assert len(document.sources["x.yaml"]) >= line - 1


def test_a_file_over_the_limit_is_refused_without_parsing():
    """Fifty megabytes are an error that names the limit."""
    (document,) = load_documents("x.yaml", b"- a\n" * 13_000_000)
    (finding,) = document.findings
    assert (finding.code, finding.name) == ("MEM007", "too-complex")
    assert "1,048,576" in finding.message


def test_a_file_of_the_limit_is_read():
    """The limit is inclusive."""
    data = b"a: 1 #".ljust(MAX_BYTES, b"-")
    assert decode("x.yaml", data)[1] is None


def test_reading_a_file_stops_behind_the_limit(tmp_path):
    """Of an endless file no more is read than shows that it is too large."""
    path = tmp_path / "big.yaml"
    path.write_bytes(b"x" * (MAX_BYTES + 1000))
    assert len(read_bytes(str(path))) == MAX_BYTES + 1
