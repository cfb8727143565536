"""Markup has a type of its own, so that a type checker finds text that was joined to it without being escaped."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from memcheck.report.html.shell import attributes
from tests.sources import trees

HEAD = """\
from memcheck.report.html.shell import Html, attributes, code, joined, shape, tag, text
from memcheck.report.html.shell import page
name: str = "<b>"
"""
WRONG = {
    "text as content": 'tag("p", name)',
    "an f-string as content": 'tag("p", f"<b>{text(name)}</b>")',
    "text among elements": 'joined([tag("p"), name])',
    "elements joined by hand": 'tag("p", "".join([text(name)]))',
    "a sum of elements": 'tag("p", text(name) + text(name))',
    "text as a page": 'page("title", name, version="1")',
}
RIGHT = (
    'tag("p", text(name), code(name), shape("rect", width=name), class_=name)',
    'page("title", joined([text(name), tag("p")]), version="1")',
    "def cell() -> Html:\n    return text(name)",
)


@pytest.mark.slow
def test_the_type_checker_refuses_text_where_markup_is_joined(root: Path, tmp_path: Path) -> None:
    """Each way of putting a raw ``str`` into a page is an error at its line, and escaped text is none."""
    api = pytest.importorskip("mypy.api")
    lines = HEAD.splitlines()
    lines += [*RIGHT, "def markup() -> Html:", "    return '<p>'"]
    right = len("\n".join(lines).splitlines())
    module = tmp_path / "snippet.py"
    module.write_text("\n".join([*lines, *WRONG.values()]) + "\n")
    options = ["--config-file", str(root / "pyproject.toml"), "--cache-dir", str(tmp_path / "cache")]
    found, _, _ = api.run([str(module), *options])
    places = {int(line.split(":")[1]) for line in found.splitlines() if "snippet.py:" in line and ": error:" in line}
    assert places == {right, *range(right + 1, right + 1 + len(WRONG))}, found


def test_markup_is_made_in_one_file(root: Path) -> None:
    """``Html(...)`` is called where text is escaped and nowhere else: no other file declares text to be markup."""
    makers = {
        path.relative_to(root).as_posix()
        for path, tree in trees(root / "memcheck", ["Html"])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Html"
    }
    assert makers == {"memcheck/report/html/shell.py"}


def test_attributes() -> None:
    """Values are escaped, hyphens stand for underscores, True names an attribute alone, None and False leave it out."""
    assert attributes(class_='a"b', aria_label="<", open=True) == ' class="a&quot;b" aria-label="&lt;" open'
    assert attributes(x=0, y=None, hidden=False, title="") == ' x="0" title=""'
