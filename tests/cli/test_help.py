"""Help in groups: every option once, under what it is about, in a line or two."""

from __future__ import annotations

import re

import pytest

from memcheck.cli.app import app, run_app

Capture = pytest.CaptureFixture[str]
LEFT_OUT = "What a config or a command leaves out"
GROUPS = {
    "check": ["What to check", "Hardware", LEFT_OUT, "Limits", "Rules", "Output", "Git and CI", "Fix", "Other"],
    "estimate": ["Hardware", LEFT_OUT, "A model by its name", "Output", "Other"],
    "import": ["Hardware", LEFT_OUT, "Output", "Other"],
}
LEFT = {"check": {"-h, --help"}}
"""Options of ``check`` that are in no group."""


def shown(command: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[list[str]]]:
    """Heading to the lines of each option, on a screen of 100 columns."""
    monkeypatch.setenv("COLUMNS", "100")
    assert run_app([command, "--help"]) == 0
    found: dict[str, list[list[str]]] = {}
    for line in capsys.readouterr().out.splitlines():
        if re.fullmatch(r"\S.*:", line) and not line.startswith("Usage"):
            found[line[:-1]] = rows = []
        elif found and re.match(r"  -", line):
            rows.append([line])
        elif found and line.strip():
            rows[-1].append(line)
    return found


@pytest.mark.parametrize("command", GROUPS)
def test_every_option_is_in_one_group(command: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The groups in their order, and none of an option's names twice."""
    found = shown(command, capsys, monkeypatch)
    assert list(found) == GROUPS[command]
    columns = [re.split(r"\s{2,}", row[0].strip())[0] for rows in found.values() for row in rows]
    names = [name for column in columns for name in re.findall(r"(?:^|\s)(-{1,2}\w[\w-]*)", column)]
    context = app.make_context("memcheck", [command])
    parameters = app.get_command(context, command).get_params(context)
    assert sorted(names) == sorted(
        name for each in parameters if each.param_type_name == "option" for name in each.opts
    )
    if command in LEFT:
        assert {row[0].strip().split("  ")[0] for row in found["Other"]} == LEFT[command]


@pytest.mark.parametrize("command", GROUPS)
def test_no_option_takes_more_than_two_lines(command: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two lines of text, below the option's own where that is long; the list of formats takes a third."""
    for rows in shown(command, capsys, monkeypatch).values():
        for row in rows:
            own_line = len(re.split(r"\s{2,}", row[0].strip())) == 1
            assert len(row) - own_line <= (3 if "--format " in row[0] else 2), row
