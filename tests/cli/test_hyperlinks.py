"""Hyperlinks on rule codes, where the terminal understands them."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from memcheck.cli.write import screen_of, understood
from memcheck.edge.screen import Screen
from memcheck.report.brief import concise
from memcheck.report.forge import page, published, quoted
from memcheck.report.full import render as full
from memcheck.rules.registry import RULES
from tests.cli.test_terminal import Stream
from tests.report import samples

LINK = re.compile(r"\x1b\]8;;(.*?)\x1b\\(.*?)\x1b\]8;;\x1b\\")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({"TERM": "xterm-256color"}, False),
        ({"TERM": "xterm-kitty"}, True),
        ({"TERM_PROGRAM": "iTerm.app"}, True),
        ({"TERM_PROGRAM": "Apple_Terminal"}, False),
        ({"TERM_PROGRAM": "vscode"}, True),
        ({"WT_SESSION": "1"}, True),
        ({"VTE_VERSION": "7600"}, True),
        ({"VTE_VERSION": "4200"}, False),
        ({"VTE_VERSION": "new"}, False),
        ({"TERM_PROGRAM": "WezTerm", "TMUX": "default,1,0"}, False),
        ({"TERM_PROGRAM": "WezTerm", "CI": "true"}, False),
        ({"TERM": "dumb", "VTE_VERSION": "7600"}, False),
    ],
)
def test_only_known_terminals_get_links(environment: dict[str, str], expected: bool) -> None:
    """There is no way to ask a terminal; to others a link would be rubbish, and a multiplexer swallows it."""
    assert understood(environment) is expected


@pytest.mark.parametrize(
    ("terminal", "color", "environment", "expected"),
    [
        (True, "auto", {"WT_SESSION": "1"}, True),
        (False, "auto", {"WT_SESSION": "1"}, False),
        (False, "always", {"WT_SESSION": "1"}, False),
        (True, "never", {"WT_SESSION": "1"}, False),
        (True, "auto", {"WT_SESSION": "1", "NO_COLOR": "1"}, True),
        (True, "auto", {"WT_SESSION": "1", "FORCE_HYPERLINK": "0"}, False),
        (False, "auto", {"FORCE_HYPERLINK": "1"}, True),
        (True, "never", {"FORCE_HYPERLINK": "1"}, False),
    ],
)
def test_links_are_for_terminals_and_wishes(
    terminal: bool, color: str, environment: dict[str, str], expected: bool
) -> None:
    """``FORCE_HYPERLINK`` decides where it is set; plain text is plain."""
    assert screen_of(Stream(terminal), color, environment).links is expected


def test_codes_are_linked_and_nothing_is_moved() -> None:
    """Without its links, a report is the report without links: they take no columns."""
    report = samples.mixed()
    for render in (full, concise):
        linked = render(report, Screen(links=True, color=True))
        assert LINK.sub(r"\2", linked) == render(report, Screen(color=True))
        found = [re.sub(r"\x1b\[[\d;]*m", "", text) for _, text in LINK.findall(linked)]
        assert [re.search(r"MEM\d+", text)[0] for text in found] == ["MEM101", "MEM203", "MEM010"]


def test_every_rule_has_a_page_without_the_web() -> None:
    """The link leads to the installed module whose docstring is the rule's page."""
    for rule in RULES:
        address = urlsplit(page(rule.code))
        assert address.scheme == "file"
        text = Path(unquote(address.path)).read_text(encoding="utf-8")
        assert rule.summary in text
    assert page("MEM000") == ""


def test_pages_on_the_web_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """``MEMCHECK_DOCS_URL`` names the folder; what is no web address, or could end the link, is not used."""
    monkeypatch.setenv("MEMCHECK_DOCS_URL", "https://example.org/memcheck/docs/rules/")
    assert page("MEM101") == published("MEM101") == "https://example.org/memcheck/docs/rules/MEM1xx.md#mem101"
    for unusable in (
        "",
        "javascript:alert(1)",
        "https://example.org/\x1b\\",
        "https://example.org/a b",
        "https://ü.org",
    ):
        monkeypatch.setenv("MEMCHECK_DOCS_URL", unusable)
        assert published("MEM101") == ""
        assert page("MEM101").startswith("file://")


def test_paths_are_percent_encoded() -> None:
    """As bytes of UTF-8; slashes stay."""
    assert quoted("a b/ü%\x1b") == "a%20b/%C3%BC%25%1B"
