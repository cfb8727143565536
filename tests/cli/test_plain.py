"""Lines that are read without click."""

from __future__ import annotations

import pytest

from memcheck.cli import gate
from memcheck.cli.app import run_app
from memcheck.cli.options import CheckOptions
from memcheck.cli.plain import FLAGS, parse_plain

PLAIN = [
    ["check"],
    ["check", "a.yaml"],
    ["check", "-"],
    ["check", "plans", "b.yml", "-q"],
    ["check", "--skip-unmarked", "--allow-empty", "a.yaml"],
    ["check", "--exit-zero", "--", "--odd name.yaml", "-"],
    ["check", *FLAGS],
    ["check", "a.yaml", "--format", "json", "--format=concise", "--format", "markdown=s.md"],
    ["check", "--fail-on", "warning", "--fail-above", "90%", "--warn-above=0.8", "a.yaml", "--fail-above=0.5"],
    ["check", "--select", "MEM1, MEM2", "--select=MEM3", "--ignore", "wasted-memory", "a.yaml"],
    ["check", "--color=never", "--config", "ci.toml", "--stdin-filename", "x.yaml", "-"],
    ["check", "--extend-select", "MEM1", "--extend-select=MEM2,MEM3", "--show-settings", "a.yaml"],
    ["check", "--baseline", "b.json", "--baseline=", "a.yaml"],
    ["check", "--config=", "--select", "", "a.yaml"],
    ["check", "--from-ref", "origin/main", "plans"],
    ["check", "--no-suppressions", "plans"],
    ["check", "--config-from-ref", "origin/main", "--config-from-ref=v1", "plans"],
]


@pytest.mark.parametrize("arguments", PLAIN, ids=" ".join)
def test_both_readers_agree(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain line means the same to the fast reader and to click."""
    seen: list[CheckOptions] = []

    def remember(options: CheckOptions) -> int:
        seen.append(options._replace(arguments=()))
        return 0

    monkeypatch.setattr(gate, "run_check", remember)
    assert run_app(arguments) == 0
    plain = parse_plain(arguments)
    assert plain is not None
    assert plain._replace(arguments=()) == seen[0]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--help"],
        ["estimate", "a.yaml"],
        ["check", "--format", "jsn"],
        ["check", "--format"],
        ["check", "--fail-above", "90"],
        ["check", "--form", "json"],
        ["check", "--quiet=1"],
        ["check", "-qq"],
        ["check", "--gpu", "h200"],
        ["check", "--help"],
        ["check", "-x"],
        ["chekc"],
    ],
    ids=" ".join,
)
def test_every_other_line_is_for_click(arguments: list[str]) -> None:
    """Help, other commands, abbreviations and mistakes are left to the full reader."""
    assert parse_plain(arguments) is None
