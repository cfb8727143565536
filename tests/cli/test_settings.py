"""Configuration that differs by file and rule, and the command that shows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memcheck.__main__ import main
from memcheck.config.read import read_settings
from tests.cli.plans import write

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def in_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test runs in an empty repository."""
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(capsys: Capture, *arguments: str) -> dict[str, list[str]]:
    """Severity and code of every finding, by plan, where a tenth of the GPU is too much."""
    main(["check", ".", "--fail-above", "0.1", "--format", "json", *arguments])
    plans = json.loads(capsys.readouterr().out)["plans"]
    return {plan["name"]: [f"{each['severity']} {each['code']}" for each in plan["diagnostics"]] for plan in plans}


def test_rules_and_severities_by_configuration(tmp_path: Path, capsys: Capture) -> None:
    """What a pattern names is ignored there and nowhere else; severities are the configuration's."""
    (tmp_path / "drafts").mkdir()
    write(tmp_path)
    write(tmp_path / "drafts", "draft")
    assert found(capsys) == {"draft": ["error MEM102"], "good": ["error MEM102"]}
    (tmp_path / "memcheck.toml").write_text(
        'per-file-ignores = {"drafts/*" = ["MEM102"]}\nseverity = {MEM1 = "warning"}'
    )
    assert found(capsys) == {"draft": [], "good": ["warning MEM102"]}


def test_extend_select(tmp_path: Path, capsys: Capture) -> None:
    """A rule that the configuration ignores or does not select is taken in; the command line's own ``--ignore`` stays."""
    write(tmp_path)
    for configured in ('ignore = ["MEM1"]', 'ignore = ["MEM102"]', 'select = ["MEM2"]'):
        (tmp_path / "memcheck.toml").write_text(configured)
        assert found(capsys) == {"good": []}
        assert found(capsys, "--extend-select", "above-fail-threshold") == {"good": ["error MEM102"]}
        assert found(capsys, "--extend-select", "MEM102", "--ignore", "MEM102") == {"good": []}


def test_extend_select_of_the_configuration(tmp_path: Path, capsys: Capture) -> None:
    """It adds to what its own file selects; ``--select`` replaces both, ``--extend-select`` adds to both."""
    (tmp_path / "memcheck.toml").write_text('select = ["MEM2"]\nextend-select = ["above-fail-threshold"]')
    path = write(tmp_path)
    assert found(capsys) == {"good": ["error MEM102"]}
    assert found(capsys, "--select", "MEM3") == {"good": []}
    assert found(capsys, "--ignore", "MEM102") == {"good": []}
    for arguments, select, added in (
        ((), 'select = ["MEM2"]  # memcheck.toml', 'extend-select = ["MEM102"]  # memcheck.toml'),
        (("--select", "MEM3"), 'select = ["MEM3"]  # command line', "extend-select = []  # default"),
        (
            ("--extend-select", "MEM4"),
            'select = ["MEM2"]  # memcheck.toml',
            'extend-select = ["MEM102", "MEM4"]  # memcheck.toml and command line',
        ),
    ):
        assert main(["check", "--show-settings", str(path), *arguments]) == 0
        shown = capsys.readouterr().out.splitlines()
        assert select in shown
        assert added in shown


def test_only_the_nearest_configuration_adds(tmp_path: Path, capsys: Capture) -> None:
    """A configuration further up is not read: what it selects or adds does not count below the nearest one."""
    (tmp_path / "memcheck.toml").write_text('select = ["MEM2"]\nextend-select = ["MEM102"]')
    (tmp_path / "team").mkdir()
    (tmp_path / "team" / "memcheck.toml").write_text('select = ["MEM3"]')
    write(tmp_path)
    write(tmp_path / "team", "inner")
    assert found(capsys) == {"good": ["error MEM102"], "inner": []}
    (tmp_path / "team" / "memcheck.toml").write_text('ignore = ["MEM102"]\nextend-select = ["MEM102"]')
    assert found(capsys) == {"good": ["error MEM102"], "inner": []}
    (tmp_path / "team" / "memcheck.toml").write_text('ignore = ["MEM1"]\nextend-select = ["MEM102"]')
    assert found(capsys) == {"good": ["error MEM102"], "inner": ["error MEM102"]}


def test_show_settings(tmp_path: Path, capsys: Capture) -> None:
    """What counts for a file is printed as a configuration that could be used, with the origin of each value."""
    path = write(tmp_path)
    (tmp_path / "memcheck.toml").write_text(
        'warn-above = 0.7\nignore = ["MEM105"]\nseverity = {MEM1 = "info"}\nper-file-ignores = {"good*" = ["MEM2"]}'
    )
    assert main(["check", "--show-settings", str(path), "--fail-above", "80%", "--select", "MEM1"]) == 0
    shown = capsys.readouterr().out
    assert "configured by memcheck.toml" in shown
    for line in (
        "fail-above = 0.8  # command line",
        "warn-above = 0.7  # memcheck.toml",
        'overhead = "modeled"  # default',
        'select = ["MEM1"]  # command line',
        'ignore = ["MEM2", "MEM105"]  # memcheck.toml',
        'severity = {"MEM1" = "info"}  # memcheck.toml',
        "# waste-below is not set",
    ):
        assert line in shown.splitlines()
    (tmp_path / "shown.toml").write_text(shown)
    assert read_settings("shown.toml").ignore == ("MEM2", "MEM105")


def test_show_settings_of_nothing(capsys: Capture) -> None:
    """A file that does not exist has no settings."""
    assert main(["check", "--show-settings", "no.yaml"]) == 2
    assert "cannot show the settings of 'no.yaml'" in capsys.readouterr().err
