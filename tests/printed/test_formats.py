"""Every format of every command, over names and values that want to be more than text."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memcheck.edge.screen import Screen, inert
from memcheck.report import BINARY, FORMATS, renderer
from memcheck.report.csv import cell
from memcheck.report.markdown import code, escape
from memcheck.rules.result import Report, Unreadable
from tests.printed.harmless import HOSTILE, harm
from tests.report import samples

TEXT = [form for form in FORMATS if form not in BINARY]
NAMES = st.lists(st.one_of(st.sampled_from(HOSTILE), st.text(min_size=1, max_size=3)), min_size=1).map("".join)


def report(evil: str) -> Report:
    """A plan that has the text wherever its author can put one, and a path of that name."""
    where = samples.at(11, 3, 22, path=f"x{evil}".replace("\0", ""), note=evil)
    remedy = samples.REMEDIES[0]._replace(title=evil, set={"training.loss": evil})
    finding = samples.over()._replace(
        message=evil, help=evil, location=where, related=((evil, where),), remedies=(remedy,)
    )
    sources = {where.path: (evil,) * 12}
    assumed = tuple(each._replace(value=evil, why=evil) for each in samples.ASSUMPTIONS)
    named = {"name": evil, "path": where.path, "gpu": evil, "framework": evil, "model": evil, "assumptions": assumed}
    return Report(
        "0.1.0",
        (samples.result("failed", (finding,), sources=sources, **named), samples.result(**named)),
        (Unreadable(where.path, evil),),
    )


@pytest.mark.parametrize("form", TEXT)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(NAMES)
def test_no_format_carries_a_command_or_an_escape(form: str, evil: str) -> None:
    """What is printed of a hostile plan is text; the commands of the github format are memcheck's own."""
    text = inert(renderer(form)(report(evil), Screen()), commands=form == "github")
    if form == "github":
        text = re.sub(r"(?m)^::(group|endgroup|error|warning|notice|stop-commands|memcheck-[0-9a-f]+)\b.*$", "", text)
    assert harm(text) == []


@pytest.mark.parametrize(
    "form", ["json", "jsonl", "sarif", "gitlab", "rdjson", "junit", "checkstyle", "csv", "markdown"]
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(NAMES)
def test_formats_for_readers_of_their_own_are_inert_by_themselves(form: str, evil: str) -> None:
    """Own escapes do it: the last filter before stdout changes no byte of them."""
    text = renderer(form)(report(evil), Screen())
    assert inert(text) == text


@pytest.mark.parametrize("form", TEXT)
def test_an_ordinary_report_leaves_as_it_was_made(form: str) -> None:
    """The last filter before stdout changes no byte of a report without harm in it."""
    text = renderer(form)(samples.mixed(), Screen(color=True))
    assert inert(text, commands=form == "github") == text


@pytest.mark.parametrize("form", TEXT)
def test_the_budget_and_every_other_part_clean_before_they_colour(form: str) -> None:
    """A colour that memcheck itself uses does not pass in a GPU's name either: parts clean what they are given."""
    assert "\x1b" not in renderer(form)(report("\x1b[1;31mh100\x1b[0m"), Screen())


def test_every_line_of_jsonl_is_one_object_for_readers_that_split_at_any_line_end() -> None:
    """U+2028, U+2029 and U+0085 in a name end no line."""
    text = renderer("jsonl")(report("a\u2028b\u2029c\x85d"), Screen())
    assert [json.loads(line)["type"] for line in text.splitlines()] == [
        json.loads(line)["type"] for line in text.rstrip("\n").split("\n")
    ]


@pytest.mark.parametrize(
    "start", ["=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20", "\t=", "\r=", " =", "::"]
)
def test_no_cell_is_a_formula(start: str) -> None:
    """What a spreadsheet or a runner would act on does not begin a cell; numbers stay numbers."""
    out = io.StringIO()
    csv.writer(out).writerow([cell(f"{start}cmd|' /C calc'!A0"), cell(-1.5)])
    text, number = next(csv.reader(io.StringIO(out.getvalue())))
    assert not text.lstrip().startswith(("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20", "::"))
    assert number == "-1.5"


LINKED = (
    "https://evil.example/x",
    "www.evil.example",
    "owner/repo#1",
    "#123",
    "GH-1",
    "gh-22",
    "@user",
    "@org/team",
    "owner/repo@deadbeef1",
    "mailto:a@b.example",
    "a1b2c3d4e5",
    "<img src=x>",
    "![x](https://evil.example)",
    "[x](y)",
    "a|b",
    "`x`",
)


@pytest.mark.parametrize("text", LINKED)
@pytest.mark.parametrize("write", [escape, code])
def test_markdown_links_and_mentions_nothing_of_a_plan(write: object, text: str) -> None:
    """GitHub links what it finds once entities are read; nothing is found in text or in code."""
    from html import unescape

    raw = write(text)  # type: ignore[operator]
    assert not re.search(r"<(?!/?code>)|[\[\]|`*_!]", raw)
    seen = unescape(raw.removeprefix("<code>").removesuffix("</code>"))
    assert not re.search(r"://|www\.|#\d|\b(?i:gh-)\d|@\w|\bmailto:|\b(?=\w*[a-f])[0-9a-f]{7,40}\b", seen)
    assert seen.replace("\u200b", "") == text


@pytest.mark.parametrize("text", ["- x", "+ x", "=====", "---", "1. x", "12) x"])
def test_markdown_starts_no_list_and_no_heading(text: str) -> None:
    """The first characters of a message are text."""
    assert not re.match(r"[-+=]|\d+[.)]", escape(text))


@pytest.mark.parametrize("text", ["llama-3.1-8b", "12345678", "plans/a.yaml:3:4", "54.31 GiB", "org/model"])
def test_markdown_leaves_ordinary_names_alone(text: str) -> None:
    """Nothing is put into names that nobody would link, so that they can be copied."""
    assert "\u200b" not in escape(text) + code(text)
