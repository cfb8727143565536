"""``memcheck check``, line by line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from memcheck.__main__ import main
from tests.cli.plans import write, write_broken, write_over

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def in_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test runs in an empty repository."""
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def plans(out: str) -> dict[str, dict[str, object]]:
    """The plans of a JSON report by name."""
    return {plan["name"]: plan for plan in json.loads(out)["plans"]}


def codes(plan: dict[str, object]) -> list[str]:
    """The codes of a plan's diagnostics."""
    return [diagnostic["code"] for diagnostic in plan["diagnostics"]]


def test_clean_plan_exits_0(tmp_path: Path, capsys: Capture) -> None:
    """A plan that fits passes, with one block and one summary line."""
    write(tmp_path)
    assert main(["check", "good.yaml"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("pass  good  good.yaml\n")
    assert out.endswith("\nchecked 1 plan: 1 passed, 0 failed\n")


def test_plan_that_does_not_fit_exits_1(tmp_path: Path, capsys: Capture) -> None:
    """The finding points into the file, and each remedy was re-computed."""
    write_over(tmp_path)
    assert main(["check", "over.yaml", "--format", "json"]) == 1
    plan = plans(capsys.readouterr().out)["over"]
    assert plan["status"] == "failed"
    diagnostic = plan["diagnostics"][0]
    assert diagnostic["code"] == "MEM101"
    assert diagnostic["location"]["line"] > 1
    assert plan["estimate"]["utilization"] > 1
    assert all(remedy["utilization"] <= 0.95 for remedy in diagnostic["remedies"])


def test_invalid_plan_is_a_finding(tmp_path: Path, capsys: Capture) -> None:
    """A misspelt key is a finding with its line and a suggestion, not a usage error."""
    write_broken(tmp_path)
    assert main(["check", "broken.yaml", "--format", "concise"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("broken.yaml:11:3: MEM011 ")


@pytest.mark.parametrize(
    ("key", "value", "code", "suggestion"),
    [("model", "llama-3.1-8bb", "MEM020", "llama-3.1-8b"), ("gpu", "h100-81gb", "MEM021", "h100-80gb")],
)
def test_unknown_names_are_located(
    tmp_path: Path, capsys: Capture, key: str, value: str, code: str, suggestion: str
) -> None:
    """A model or GPU that the catalog lacks is a finding on its line, with the close names."""
    write(tmp_path, **{key: value})
    assert main(["check", "good.yaml", "--format", "json"]) == 1
    plan = plans(capsys.readouterr().out)["good"]
    assert (plan["status"], plan["estimate"], codes(plan)) == ("error", None, [code])
    diagnostic = plan["diagnostics"][0]
    line = (tmp_path / "good.yaml").read_text().splitlines()[diagnostic["location"]["line"] - 1]
    assert line.strip() == f"{key}: {value}"
    assert suggestion in diagnostic["help"] + diagnostic["message"]


def test_one_bad_file_stops_no_other(tmp_path: Path, capsys: Capture) -> None:
    """Unreadable, broken and good files in one run: everything is reported, and the exit code is that of the worst."""
    write(tmp_path)
    write_broken(tmp_path)
    write_over(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"memcheck: 1\0\xff\xfe")
    code = main(["check", "good.yaml", "missing.yaml", "binary.yaml", "broken.yaml", "over.yaml", "--format", "json"])
    streams = capsys.readouterr()
    assert code == 2
    assert streams.err == "memcheck: error: cannot read missing.yaml: No such file or directory\n"
    report = json.loads(streams.out)
    assert {plan["name"]: plan["status"] for plan in report["plans"]} == {
        "binary": "error",
        "broken": "error",
        "good": "passed",
        "over": "failed",
    }
    assert report["unreadable"] == [{"path": "missing.yaml", "message": "No such file or directory"}]


def test_folders_are_searched_for_plans(tmp_path: Path, capsys: Capture) -> None:
    """YAML files with the mark are taken, at any depth; other YAML, hidden folders and other suffixes are not."""
    for folder in ("a/b", ".hidden", "node_modules/x"):
        (tmp_path / folder).mkdir(parents=True)
        write(tmp_path / folder, folder.replace("/", "-"))
    (tmp_path / "a" / "compose.yml").write_text("services: {web: {image: memcheck}}\n")
    write(tmp_path / "a", "short").rename(tmp_path / "a" / "short.yml")
    write(tmp_path / "a", "text").rename(tmp_path / "a" / "text.txt")
    assert main(["check", ".", "--format", "json"]) == 0
    assert [plan["path"] for plan in json.loads(capsys.readouterr().out)["plans"]] == ["a/b/a-b.yaml", "a/short.yml"]


def test_files_are_sorted_and_checked_once(tmp_path: Path, capsys: Capture) -> None:
    """However often and in whatever order a file is named, it is checked once, in the order of the paths."""
    for name in ("b", "a"):
        write(tmp_path, name)
    assert main(["check", "b.yaml", "./a.yaml", ".", "a.yaml", "--format", "json"]) == 0
    assert [plan["path"] for plan in json.loads(capsys.readouterr().out)["plans"]] == ["a.yaml", "b.yaml"]


def test_link_loop_ends(tmp_path: Path, capsys: Capture) -> None:
    """A folder that links to itself is searched once; a link to a plan is followed; a dead link is reported."""
    (tmp_path / "plans").mkdir()
    write(tmp_path / "plans")
    (tmp_path / "plans" / "loop").symlink_to(tmp_path / "plans")
    (tmp_path / "plans" / "linked.yaml").symlink_to("good.yaml")
    (tmp_path / "plans" / "dead.yaml").symlink_to("nothing.yaml")
    assert main(["check", "plans", "--format", "concise"]) == 2
    streams = capsys.readouterr()
    assert streams.out == "checked 2 plans: 2 passed, 0 failed, 1 path not readable\n"
    assert "cannot read plans/dead.yaml" in streams.err


@pytest.mark.parametrize("paths", [["."], [], ["empty"]])
def test_nothing_to_check_is_an_error(
    tmp_path: Path, capsys: Capture, paths: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gate that checked nothing did not pass, unless it was told that there may be nothing."""
    (tmp_path / "empty").mkdir()
    assert main(["check", *paths]) == 2
    assert "nothing to check" in capsys.readouterr().err
    assert main(["check", *paths, "--allow-empty"]) == 0
    assert capsys.readouterr().out == "checked 0 plans: 0 passed, 0 failed\n"


@pytest.mark.parametrize("text", ["a: 1\n", "", "# nothing\n"], ids=["other", "empty", "comment"])
def test_named_file_must_be_a_plan(tmp_path: Path, capsys: Capture, text: str) -> None:
    """A file that was named and is no plan is an error, unless hooks ask to skip such files."""
    write(tmp_path)
    (tmp_path / "other.yaml").write_text(text)
    assert main(["check", "good.yaml", "other.yaml", "--format", "concise"]) == 1
    assert "other.yaml:1:1: MEM010" in capsys.readouterr().out
    assert main(["check", "good.yaml", "other.yaml", "--skip-unmarked"]) == 0
    assert main(["check", "other.yaml", "--skip-unmarked"]) == 2
    assert main(["check", "other.yaml", "--skip-unmarked", "--allow-empty"]) == 0


def test_several_plans_in_one_file(tmp_path: Path, capsys: Capture) -> None:
    """Documents are numbered from 0 and judged one by one; unnamed ones are called after the file and their number."""
    good, over = write(tmp_path).read_text(), write_over(tmp_path).read_text()
    (tmp_path / "both.yaml").write_text(good + "---\n" + over.replace("name: over\n", ""))
    assert main(["check", "both.yaml", "--format", "json"]) == 1
    found = [(p["document"], p["name"], p["status"]) for p in json.loads(capsys.readouterr().out)["plans"]]
    assert found == [(0, "good", "passed"), (1, "both#1", "failed")]


def test_stdin_is_a_dash(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """``-`` reads stdin; ``--stdin-filename`` names it in messages."""
    over = write_over(tmp_path).read_bytes()
    (tmp_path / "over.yaml").unlink()
    for arguments, name in (["-"], "<stdin>"), (["-", "--stdin-filename", "plans/x.yaml"], "plans/x.yaml"):
        (tmp_path / "input").write_bytes(over)
        with (tmp_path / "input").open() as stream:
            monkeypatch.setattr("sys.stdin", stream)
            assert main(["check", *arguments, "--format", "concise"]) == 1
        assert capsys.readouterr().out.startswith(f"{name}:")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], 0),
        (["--fail-on", "warning"], 1),
        (["--fail-on", "never"], 0),
        (["--fail-above", "10%"], 1),
        (["--fail-above", "10%", "--fail-on", "never"], 0),
        (["--fail-above", "10%", "--exit-zero"], 0),
        (["--fail-on", "warning", "--ignore", "MEM103"], 0),
        (["--fail-on", "warning", "--select", "MEM2"], 0),
        (["--fail-on", "warning", "--select", "above-warn-threshold"], 1),
    ],
    ids=str,
)
def test_what_fails_the_run(tmp_path: Path, arguments: list[str], code: int) -> None:
    """Severity, thresholds and selection decide the exit code."""
    write(tmp_path)
    assert main(["check", "good.yaml", "--warn-above", "5%", *arguments]) == code


def test_an_option_goes_before_the_plans_own_threshold(tmp_path: Path, capsys: Capture) -> None:
    """``policy.fail_above`` gives way to ``--fail-above``; what a plan adds as ``overhead`` stays in the figure."""

    def needed(text: str, *arguments: str) -> tuple[int, float]:
        (tmp_path / "own.yaml").write_text(write(tmp_path).read_text(encoding="utf-8") + text, encoding="utf-8")
        code = main(["check", "own.yaml", "--format", "json", *arguments])
        return code, plans(capsys.readouterr().out)["good"]["estimate"]["needed_bytes"]

    code, plain = needed("policy: {fail_above: 100%, overhead: 0%}\n")
    assert code == 0
    assert needed("policy: {fail_above: 100%, overhead: 0%}\n", "--fail-above", "10%") == (1, plain)
    code, more = needed("policy: {fail_above: 100%, overhead: 20%}\n", "--fail-above", "10%")
    assert code == 1
    assert more > plain


def test_status_agrees_with_the_exit_code(tmp_path: Path, capsys: Capture) -> None:
    """A warning that fails the run makes the plan a failed one."""
    write(tmp_path)
    assert main(["check", "good.yaml", "--warn-above", "5%", "--fail-on", "warning", "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["summary"]["failed"] == 1


def test_what_prevents_the_estimate_cannot_be_ignored(tmp_path: Path, capsys: Capture) -> None:
    """A plan that was not judged does not pass because the reason was switched off."""
    write_broken(tmp_path)
    assert main(["check", "broken.yaml", "--ignore", "MEM0", "--format", "json"]) == 1
    assert codes(plans(capsys.readouterr().out)["broken"]) == ["MEM011"]


@pytest.mark.slow
def test_policy_of_the_plan_goes_before_the_configuration(tmp_path: Path) -> None:
    """Configured thresholds are defaults, the plan's own are nearer, the command line has the last word."""
    path = write(tmp_path)
    (tmp_path / "memcheck.toml").write_text("fail-above = 0.1")
    assert main(["check", "good.yaml"]) == 1
    path.write_text(path.read_text() + "policy: {fail_above: 95%}\n")
    assert main(["check", "good.yaml"]) == 0
    assert main(["check", "good.yaml", "--fail-above", "0.1"]) == 1


def test_nearest_configuration_counts_for_each_file(tmp_path: Path, capsys: Capture) -> None:
    """Two teams in one repository have their own thresholds."""
    for team, share in (("strict", "10%"), ("lenient", "95%")):
        (tmp_path / team).mkdir()
        write(tmp_path / team, team)
        (tmp_path / team / "memcheck.toml").write_text(f'fail-above = "{share}"')
    assert main(["check", ".", "--format", "json"]) == 1
    found = plans(capsys.readouterr().out)
    assert (found["strict"]["status"], found["lenient"]["status"]) == ("failed", "passed")


def test_configured_paths_are_checked(tmp_path: Path, capsys: Capture) -> None:
    """Without paths on the command line, those of the configuration count."""
    for folder in ("plans", "drafts"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, folder)
    (tmp_path / "memcheck.toml").write_text('paths = ["plans"]')
    assert main(["check", "--format", "json"]) == 0
    assert list(plans(capsys.readouterr().out)) == ["plans"]


def test_overhead_of_the_configuration(tmp_path: Path, capsys: Capture) -> None:
    """A configured flat overhead replaces the itemised one."""
    write(tmp_path)
    (tmp_path / "memcheck.toml").write_text('overhead = "10%"')
    assert main(["check", "good.yaml", "--format", "json"]) == 0
    estimate = plans(capsys.readouterr().out)["good"]["estimate"]
    assert estimate["device_bytes"] / estimate["allocated_bytes"] == pytest.approx(1.1, rel=1e-3)


def test_other_gpu(tmp_path: Path, capsys: Capture) -> None:
    """``--gpu`` judges the same plans on other hardware, by any of its names."""
    write(tmp_path)
    assert main(["check", "good.yaml", "--gpu", "RTX-4090", "--format", "json", "--exit-zero"]) == 0
    small = plans(capsys.readouterr().out)["good"]["estimate"]["capacity_bytes"]
    assert main(["check", "good.yaml", "--format", "json"]) == 0
    assert small < plans(capsys.readouterr().out)["good"]["estimate"]["capacity_bytes"]


def test_several_formats_at_once(tmp_path: Path, capsys: Capture) -> None:
    """Each ``--format FORMAT=FILE`` writes its file; what has no file goes to stdout."""
    write(tmp_path)
    arguments = [
        "check",
        "good.yaml",
        "--format",
        "json=report.json",
        "--format",
        "concise",
        "--format",
        "markdown=s.md",
    ]
    assert main(arguments) == 0
    assert capsys.readouterr().out == "checked 1 plan: 1 passed, 0 failed\n"
    assert json.loads((tmp_path / "report.json").read_text())["summary"]["passed"] == 1
    assert (tmp_path / "s.md").read_text(encoding="utf-8").startswith("### ✅ memcheck: ")


def test_job_summary_is_appended_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner's summary file may hold what the step wrote before; another file is replaced."""
    write(tmp_path)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    for name in ("summary.md", "other.md"):
        (tmp_path / name).write_text("before\n")
        assert main(["check", "good.yaml", "--format", f"markdown={name}"]) == 0
    assert (tmp_path / "summary.md").read_text(encoding="utf-8").startswith("before\n### ✅")
    assert (tmp_path / "other.md").read_text(encoding="utf-8").startswith("### ✅")


def test_quiet_says_nothing_about_success(tmp_path: Path, capsys: Capture) -> None:
    """With ``--quiet``, only findings are printed."""
    write(tmp_path)
    assert main(["check", "good.yaml", "--quiet"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "--format", "jsn", "good.yaml"], "unknown format 'jsn'; did you mean 'json'?"),
        (["check", "--format", "json=", "good.yaml"], "'json=' names no file"),
        (
            ["check", "--format", "json=no/such/folder.json", "good.yaml"],
            "cannot write the report to no/such/folder.json",
        ),
        (["check", "--fail-above", "90", "good.yaml"], "'90' is not a share of capacity"),
        (["check", "--fail-on", "errors", "good.yaml"], "'errors' is not one of"),
        (["check", "--select", "MEM9", "good.yaml"], "no rule matches 'MEM9'"),
        (["check", "--ignore", "exceed-capacity", "good.yaml"], "did you mean exceeds-capacity?"),
        (["check", "--gpu", "h100-81gb", "good.yaml"], "h100-80gb"),
        (["check", "--config", "no.toml", "good.yaml"], "cannot read the configuration no.toml"),
        (["check", "--frmat", "json", "good.yaml"], "--format"),
        (["chekc", "good.yaml"], "no such command 'chekc'; did you mean 'check'?"),
        (["estimate"], "Missing argument"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_command_lines_exit_2(tmp_path: Path, capsys: Capture, arguments: list[str], message: str) -> None:
    """One line on stderr says what is wrong and what to try; nothing is printed on stdout."""
    write(tmp_path)
    assert main(arguments) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert message in streams.err
    assert streams.err.startswith("memcheck: error: ")


def test_configuration_error_exits_2(tmp_path: Path, capsys: Capture) -> None:
    """A wrong configuration stops the run: judging by other rules than configured would mislead."""
    write(tmp_path)
    (tmp_path / "memcheck.toml").write_text("fail_above = 0.9")
    assert main(["check", "good.yaml"]) == 2
    assert "unknown key 'fail_above'; did you mean 'fail-above'?" in capsys.readouterr().err


def test_unreadable_file_is_named(tmp_path: Path, capsys: Capture) -> None:
    """A file without read permission is reported, and the others are checked."""
    write(tmp_path)
    write(tmp_path, "secret").chmod(0)
    if os.access(tmp_path / "secret.yaml", os.R_OK):
        pytest.skip("this user may read everything")
    assert main(["check", "."]) == 2
    streams = capsys.readouterr()
    assert "cannot read secret.yaml: Permission denied" in streams.err
    assert "checked 1 plan: 1 passed" in streams.out
