"""Finding and reading the configuration."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from memcheck.config.find import ConfigHardware, Configurations, Settings
from memcheck.config.read import READERS
from memcheck.errors import ConfigurationError
from memcheck.rules.types import Governance

EVERYTHING = """\
paths = ["plans", "../more"]
fail-above = "90%"
warn-above = 0.8
waste-below = "40%"
overhead = "10%"
uncertain = "fail"
unpacked = "fail"
profile = "review"
select = ["MEM1", "world-size"]
extend-select = ["MEM217"]
ignore = ["MEM105"]
fail-on = "warning"
required-version = ">=0.1"
baseline = ".memcheck-baseline.json"
severity = {world-size = "warning", MEM1 = "info"}
per-file-ignores = {"drafts/*" = ["MEM1", "world-size"]}
configs = [{path = "jobs/*.yml", gpu = "a100-80gb", gpus-per-node = 8, sequence-length = 4096, images = {per_sample = 0}}]
policy = {locked = true}
prices = {H100-80GB = 2.5, l40s = 1}
page-url = "https://example.org/page/"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a plan two folders down; the working directory is its root."""
    (tmp_path / "repo" / ".git").mkdir(parents=True)
    (tmp_path / "repo" / "team" / "plans").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "repo")
    return tmp_path / "repo"


def of_plan(**only: str) -> Settings:
    """The settings of the plan."""
    return Configurations(**only).of("team/plans/a.yaml")


def test_everything_that_can_be_set(project: Path) -> None:
    """Every key arrives typed; paths are relative to the file's folder, rules may be named."""
    (project / "team" / "memcheck.toml").write_text(EVERYTHING)
    assert of_plan() == Settings(
        paths=(os.path.join("team", "plans"), "more"),
        fail_above=0.9,
        warn_above=0.8,
        waste_below=0.4,
        overhead=0.1,
        uncertain="fail",
        unpacked="fail",
        profile="review",
        select=("MEM1", "MEM201"),
        extend_select=("MEM217",),
        ignore=("MEM105",),
        fail_on="warning",
        severity=(("MEM201", "warning"), ("MEM1", "info")),
        per_file_ignores=(("drafts/*", ("MEM1", "MEM201")),),
        baseline=os.path.join("team", ".memcheck-baseline.json"),
        configs=(ConfigHardware("jobs/*.yml", "a100-80gb", 8, sequence_length=4096, images={"per_sample": 0}),),
        policy=Governance(locked=True),
        prices=(("h100-80gb", 2.5), ("l40s", 1.0)),
        page_url="https://example.org/page/",
        file="team/memcheck.toml",
    )
    assert {line.split(" =")[0] for line in EVERYTHING.splitlines() if line} == set(READERS)


def test_nearest_file_counts(project: Path) -> None:
    """A folder's own configuration replaces that of the folders above."""
    (project / "memcheck.toml").write_text("fail-above = 0.5")
    assert of_plan().fail_above == 0.5
    (project / "team" / "memcheck.toml").write_text("warn-above = 0.5")
    assert of_plan() == Settings(warn_above=0.5, file="team/memcheck.toml")


def test_own_file_goes_before_pyproject(project: Path) -> None:
    """In one folder, ``memcheck.toml`` counts and ``pyproject.toml`` does not."""
    (project / "pyproject.toml").write_text("[tool.memcheck]\nfail-above = 0.5\n")
    assert of_plan().file == "pyproject.toml"
    (project / "memcheck.toml").write_text("fail-above = 0.6")
    assert of_plan().fail_above == 0.6


def test_pyproject_of_others_is_passed_over(project: Path) -> None:
    """A ``pyproject.toml`` without the table does not end the search, even if it mentions memcheck."""
    (project / "memcheck.toml").write_text("fail-above = 0.6")
    (project / "team" / "pyproject.toml").write_text('[project]\nname = "memcheck-plans"\n')
    assert of_plan().fail_above == 0.6


def test_search_ends_at_the_repository(project: Path) -> None:
    """What lies above the repository is somebody else's."""
    (project.parent / "memcheck.toml").write_text("fail-above = 0.5")
    assert of_plan() == Settings()


def test_named_file_governs_everything(project: Path) -> None:
    """``--config`` replaces the search."""
    (project / "memcheck.toml").write_text("fail-above = 0.5")
    (project / "ci.toml").write_text("fail-above = 0.7")
    assert of_plan(only="ci.toml").fail_above == 0.7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fail_above = 0.9", "memcheck.toml: unknown key 'fail_above'; did you mean 'fail-above'?"),
        ("colour = true", "memcheck.toml: unknown key 'colour'"),
        ("fail-above = 90", "memcheck.toml: fail-above: 90 is not a share of capacity"),
        ("fail-on = 'errors'", "memcheck.toml: fail-on: 'errors' is not one of error, warning, never"),
        ("paths = 'plans'", "memcheck.toml: paths: 'plans' is not a list of strings"),
        ("select = ['MEM9']", "memcheck.toml: select: no rule matches 'MEM9'"),
        ("required-version = '>=99'", "memcheck.toml requires memcheck >=99, and this is "),
        ("baseline = true", "memcheck.toml: baseline: True is not the name of a file"),
        ("baseline = '../../x'", "memcheck.toml: baseline: '../../x' lies outside the repository"),
        ("baseline = 'team/../../x'", "memcheck.toml: baseline: 'team/../../x' lies outside the repository"),
        ("baseline = '/etc/x'", "memcheck.toml: baseline: '/etc/x' lies outside the repository"),
        ("severity = 'error'", "memcheck.toml: severity: 'error' is not a table of rules and severities"),
        ("severity = {MEM1 = 'off'}", "memcheck.toml: severity: 'off' is not one of info, warning, error"),
        ("severity = {MEM9 = 'info'}", "memcheck.toml: severity: no rule matches 'MEM9'"),
        ("per-file-ignores = ['a']", "memcheck.toml: per-file-ignores: ['a'] is not a table of patterns"),
        ("per-file-ignores = {a = 'MEM1'}", "memcheck.toml: per-file-ignores: 'MEM1' is not a list of strings"),
        ("required-version = 1", "memcheck.toml: required-version: 1 is not a version requirement"),
        ("uncertain = 'never'", "memcheck.toml: uncertain: 'never' is not one of warn, fail"),
        ("unpacked = 'never'", "memcheck.toml: unpacked: 'never' is not one of warn, fail"),
        ("uncertain = true", "memcheck.toml: uncertain: True is not one of warn, fail"),
        ("overhead = 'some'", "memcheck.toml: overhead: 'some' is not a share of capacity"),
        ("fail-above = ", "memcheck.toml is not valid TOML"),
    ],
)
def test_wrong_configuration_is_refused(project: Path, text: str, message: str) -> None:
    """The message names the file, the key and what is allowed; nothing is ignored in silence."""
    (project / "memcheck.toml").write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        of_plan()
    assert caught.value.message.startswith(message)
    assert caught.value.exit_code == 2


def test_missing_named_file_is_refused(project: Path) -> None:
    """A configuration that was asked for must exist."""
    with pytest.raises(ConfigurationError, match=r"cannot read the configuration no\.toml: No such file"):
        of_plan(only="no.toml")


@pytest.mark.parametrize("text", ["tool = 1", "[tool]\nmemcheck = 1", "[tool.memcheck]\nfoo = 1"])
def test_pyproject_with_a_wrong_table(project: Path, text: str) -> None:
    """A table of the wrong kind is an error or no table, never a traceback."""
    (project / "pyproject.toml").write_text(f"# memcheck\n{text}\n")
    if text == "tool = 1":
        assert of_plan() == Settings()
    else:
        with pytest.raises(ConfigurationError):
            of_plan()


@pytest.mark.parametrize(
    "text",
    [
        "[tool.memcheck]\nfail-above = 0.5",
        "[ tool . 'memcheck' ]\nfail-above = 0.5",
        "[tool]\nmemcheck = {fail-above = 0.5}",
        "tool.memcheck.fail-above = 0.5",
        'tool = {"memcheck" = {fail-above = 0.5}}',
        '["tool".memcheck]\nfail-above = 0.5',
    ],
)
def test_every_spelling_of_the_table_is_found(project: Path, text: str) -> None:
    """The glance that saves parsing overlooks no way that TOML has to write the table."""
    (project / "pyproject.toml").write_text(f"# comment\n{text}\n")
    assert of_plan().fail_above == 0.5


def test_no_parser_without_a_configuration(project: Path) -> None:
    """Where nothing is configured, no TOML parser is imported, even if ``pyproject.toml`` names memcheck."""
    (project / "pyproject.toml").write_text("[project]\nname = 'memcheck'\n[tool.ruff]\nselect = ['ALL']\n")
    code = (
        "import sys; from memcheck.config.find import Configurations; Configurations().of('a.yaml');"
        "raise SystemExit('tomllib' in sys.modules or 'tomli' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0
