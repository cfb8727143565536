"""A rule's page as text."""

from __future__ import annotations

import pytest

from memcheck.edge.screen import Screen, width
from memcheck.report.forge import doc_section, styled
from memcheck.rules.registry import RULES

PAGE = """\
# MEM999 name

A first
paragraph of `two words` that goes on for a while, so that it has to be broken somewhere.

## Example

    an: {example: that is never broken, however long it may be, and it is really long}

- one point
- another one that is so long
  that it takes two lines here
1. a step
"""


def test_paragraphs_are_filled() -> None:
    """Lines of a paragraph are joined and broken anew; examples stay; points start lines of their own."""
    assert styled(PAGE, Screen(60)).splitlines() == [
        "MEM999 name",
        "",
        "A first paragraph of `two words` that goes on for a while,",
        "so that it has to be broken somewhere.",
        "",
        "Example",
        "",
        "    an: {example: that is never broken, however long it may be, and it is really long}",
        "",
        "- one point",
        "- another one that is so long that it takes two lines here",
        "1. a step",
    ]


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_pages_fill_any_screen(columns: int) -> None:
    """Every rule's page uses the width there is and no more."""
    for rule in RULES:
        lines = [line for line in styled(rule.explain(), Screen(columns)).splitlines() if not line.startswith("    ")]
        assert max(map(width, lines)) <= columns
    assert max(width(line) for rule in RULES for line in styled(rule.explain(), Screen(120)).splitlines()) > 100


def test_a_comment_behind_an_example_stands_above_it_where_there_is_no_room() -> None:
    """The example itself is never broken, and stays one that can be copied."""
    line = "    training: {micro_batch_size: 2, sequence_length: 8192}   # of which the second is long"
    assert styled(line, Screen(120)).splitlines() == [line]
    assert styled(line, Screen(60)).splitlines() == [
        "    # of which the second is long",
        "    training: {micro_batch_size: 2, sequence_length: 8192}",
    ]


def test_sections_are_found() -> None:
    """The text under a heading, as one paragraph; nothing if there is no such heading."""
    doc = "Summary.\n\n## What it does\n\nOne\ntwo.\n\n## Why it matters\n\nThree.\n"
    assert doc_section(doc, "What it does") == "One two."
    assert doc_section(doc, "Why it matters") == "Three."
    assert doc_section(doc, "Options") == ""
