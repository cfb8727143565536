"""The files of ``examples/`` as people and editors meet them."""

from __future__ import annotations

import re

from memcheck.config.find import PlanFile, find_plans
from tests.examples.rendered import NAMES, ROOT, at_root

MODELINE = "# yaml-language-server: $schema=../schemas/plan.schema.json"


def test_an_editor_finds_the_schema() -> None:
    """The first line of every document is the modeline, and its path leads to the schema."""
    for name in NAMES:
        for document in read(name).split("\n---\n"):
            assert document.startswith(MODELINE + "\n"), name
        assert (ROOT / "examples" / MODELINE.partition("=")[2]).resolve() == ROOT / "schemas" / "plan.schema.json", name


def test_a_comment_says_what_it_teaches() -> None:
    """Two to five lines of prose follow, one of which starts with the lesson, none too long to read."""
    for name in NAMES:
        comment = re.match(r"(?:# .*\n)+", read(name).removeprefix(MODELINE + "\n"))
        assert comment is not None, name
        lines = comment.group().splitlines()
        assert 2 <= len(lines) <= 5, name
        assert any(line.startswith("# Teaches: ") for line in lines), name
        assert max(map(len, read(name).splitlines())) <= 120, name


def test_the_folder_holds_plans_only() -> None:
    """Searching the folder finds exactly the examples: bases are no plans, and the rules' examples are elsewhere."""
    with at_root():
        found = [item.path for item in find_plans(["examples"]) if isinstance(item, PlanFile)]
    assert found == [f"examples/{name}.yaml" for name in NAMES]


def read(name: str) -> str:
    """The text of one example."""
    return (ROOT / "examples" / f"{name}.yaml").read_text(encoding="utf-8")
