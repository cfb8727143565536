"""The GitHub Action, run step by step under bash with the event files a runner would have written."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.action.composite import ActionRun, run_action, substitute, wanted

pytestmark = pytest.mark.slow  # each test runs the steps as processes

EVENTS = {"push": "push", "pull_request": "pull_request", "fork_pull_request": "pull_request"}
FITS = "llama-3.1-8b-fsdp-8xh100.yaml"
FAILS = "llama-3.1-8b-tp4-a100-40gb.yaml"
READY = {"python": {"python-path": sys.executable}, "install": {"python": sys.executable}}


class Repository:
    """A checked-out repository with one plan that fits and one that does not."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.action = root
        self.workspace = folder / "workspace"
        self.temp = folder / "temp"
        self.temp.mkdir()
        (self.workspace / "plans").mkdir(parents=True)
        for name in (FITS, FAILS):
            shutil.copy(root / "examples" / name, self.workspace / "plans")

    def run(self, event: str = "push", ready: dict[str, dict[str, str]] = READY, **given: str) -> ActionRun:
        """Run the action; inputs are given with underscores."""
        inputs = {name.replace("_", "-"): value for name, value in given.items()}
        payload = Path(__file__).parent / "events" / f"{event}.json"
        environ = {"GITHUB_EVENT_NAME": EVENTS[event], "GITHUB_EVENT_PATH": str(payload)}
        return run_action(self.action, self.workspace, self.temp, inputs, environ, ready)


@pytest.fixture
def repository(root: Path, tmp_path: Path) -> Repository:
    return Repository(root, tmp_path)


def annotations(log: str, kind: str) -> list[str]:
    """The annotations of one kind that a runner would show."""
    return [line for line in log.splitlines() if line.startswith(f"::{kind} ")]


@pytest.mark.parametrize("event", EVENTS)
def test_failing_plan_fails_the_step_on_every_event(repository: Repository, event: str) -> None:
    """A plan that does not fit fails the step on pushes and on pull requests, also from a fork without a token."""
    done = repository.run(event, paths="plans")
    assert done.exit_code == 1
    assert done.outputs["exit-code"] == "1"
    assert (done.outputs["plans"], done.outputs["failed"]) == ("2", "1")
    assert int(done.outputs["errors"]) >= 1
    assert float(done.outputs["max-utilization"]) > 1
    errors = annotations(done.log, "error")
    assert errors
    assert all(f"file=plans/{FAILS},line=" in line for line in errors)


def test_fitting_plan_passes_without_annotations(repository: Repository) -> None:
    """A plan that fits passes the step and leaves no error on the pull request."""
    done = repository.run(paths=f"plans/{FITS}")
    assert done.exit_code == 0
    assert (done.outputs["exit-code"], done.outputs["failed"], done.outputs["errors"]) == ("0", "0", "0")
    assert 0 < float(done.outputs["max-utilization"]) < 1
    assert annotations(done.log, "error") == []


def test_job_summary_is_appended(repository: Repository) -> None:
    """The job summary names both plans and keeps what another step wrote before."""
    done = repository.run(paths="plans")
    before, _, added = done.summary.partition("\n")
    assert before == "Written before."
    assert FITS.removesuffix(".yaml") in added
    assert FAILS.removesuffix(".yaml") in added


def test_job_summary_can_be_switched_off(repository: Repository) -> None:
    """With `summary: false` nothing is added to the job summary."""
    assert repository.run(paths="plans", summary="false").summary == "Written before.\n"


def test_report_is_left_for_later_steps(repository: Repository) -> None:
    """The output `report-json` is the path of the complete JSON report of this run."""
    done = repository.run(paths="plans")
    report = json.loads(Path(done.outputs["report-json"]).read_text(encoding="utf-8"))
    assert report["summary"]["plans"] == 2
    worst = max(plan["estimate"]["utilization"] for plan in report["plans"])
    assert float(done.outputs["max-utilization"]) == worst


def test_fail_on_never_reports_and_passes(repository: Repository) -> None:
    """With `fail-on: never` the step passes, and the error is still annotated and counted."""
    done = repository.run(paths="plans", fail_on="never")
    assert done.exit_code == 0
    assert int(done.outputs["errors"]) >= 1
    assert annotations(done.log, "error")


def test_thresholds_reach_the_gate(repository: Repository) -> None:
    """A plan that fits fails once `fail-above` is below its utilization."""
    assert repository.run(paths=f"plans/{FITS}", fail_above="5%", warn_above="4%").exit_code == 1


def test_configuration_file_reaches_the_gate(repository: Repository) -> None:
    """The input `config` names the configuration file, which may sit outside the plan's own folders."""
    (repository.workspace / "ci").mkdir()
    (repository.workspace / "ci" / "gate.toml").write_text("fail-above = 0.05\nwarn-above = 0.04\n", encoding="utf-8")
    assert repository.run(paths=f"plans/{FITS}", config="ci/gate.toml").exit_code == 1


def test_arguments_are_split_as_a_shell_would(repository: Repository) -> None:
    """More arguments and paths are split into words with quotes honoured, and never run as shell code."""
    shutil.copytree(repository.workspace / "plans", repository.workspace / "more plans")
    done = repository.run(paths="plans\n'more plans'", args="--exit-zero --fail-above '90%'")
    assert done.exit_code == 0
    assert done.outputs["plans"] == "4"
    hostile = repository.run(paths="plans; touch broken $(touch broken) `touch broken`")
    assert hostile.exit_code == 2
    assert not (repository.workspace / "broken").exists()


def test_globs_are_expanded(repository: Repository) -> None:
    """Globs name the files they match, below the working directory; one without a match is an error."""
    assert repository.run(paths="plans/*fsdp*.yaml **/*tp4*.yaml").outputs["plans"] == "2"
    assert repository.run(working_directory="plans", paths="*.yaml").outputs["plans"] == "2"
    assert repository.run(paths="plans/*.yml").exit_code == 2


def test_unbalanced_quote_is_a_named_error(repository: Repository) -> None:
    """An input that cannot be split fails with exit code 2 and the input's name instead of a traceback."""
    done = repository.run(args="'--exit-zero")
    assert done.exit_code == 2
    assert done.outputs["exit-code"] == "2"
    assert "the input 'args' cannot be split" in annotations(done.log, "error")[0]
    assert "Traceback" not in done.log


def test_missing_path_is_an_error_of_its_own(repository: Repository) -> None:
    """A path that does not exist fails with exit code 2, an annotation and zero counts."""
    done = repository.run(paths="no-such-folder")
    assert done.exit_code == 2
    assert done.outputs["exit-code"] == "2"
    assert done.outputs["failed"] == "0"
    assert any("exit code 2" in line for line in annotations(done.log, "error"))


def test_working_directory_keeps_annotations_on_the_diff(repository: Repository) -> None:
    """In a working directory below the workspace, annotations still name files from the workspace."""
    done = repository.run(working_directory="plans", paths=".")
    assert done.exit_code == 1
    assert all(f"file=plans/{FAILS}," in line for line in annotations(done.log, "error"))


def test_missing_working_directory_is_a_named_error(repository: Repository) -> None:
    """A working directory that does not exist fails with exit code 2 and the input's name."""
    done = repository.run(working_directory="no-such-folder")
    assert done.exit_code == 2
    assert "'working-directory'" in annotations(done.log, "error")[0]


def test_annotations_stay_within_the_runners_budget(repository: Repository) -> None:
    """With more failing plans than a runner shows, a notice counts the rest instead of losing it silently."""
    text = (repository.workspace / "plans" / FAILS).read_text(encoding="utf-8")
    for number in range(12):
        (repository.workspace / "plans" / f"more-{number}.yaml").write_text(text, encoding="utf-8")
    done = repository.run(paths="plans")
    assert int(done.outputs["failed"]) == 13
    assert 1 <= len(annotations(done.log, "error")) <= 10
    assert len(annotations(done.log, "notice")) <= 10
    assert any("more" in line for line in annotations(done.log, "notice"))


def test_plans_cannot_speak_to_the_runner(repository: Repository) -> None:
    """Text of a plan that looks like a workflow command is never printed where the runner obeys it."""
    plan = repository.workspace / "plans" / FAILS
    text = plan.read_text(encoding="utf-8")
    description = next(line for line in text.splitlines() if line.startswith("description:"))
    plan.write_text(text.replace(description, 'description: "x\\n::error::forged"'), encoding="utf-8")
    log = repository.run(paths="plans").log
    token = None
    for line in log.splitlines():
        if token is None and line.startswith("::stop-commands::"):
            token = line.removeprefix("::stop-commands::")
        elif token is not None and line == f"::{token}::":
            token = None
        elif token is None:
            assert not line.startswith("::error::")


def test_checked_repository_cannot_replace_modules(repository: Repository) -> None:
    """Python files of the checked repository are not imported, whatever they are called."""
    for name in ("memcheck", "yaml", "json", "click"):
        (repository.workspace / f"{name}.py").write_text("raise SystemExit('imported')\n", encoding="utf-8")
    assert repository.run(paths=f"plans/{FITS}").exit_code == 0


def test_old_python_is_refused_with_the_remedy(repository: Repository, tmp_path: Path) -> None:
    """A runner whose Python is too old gets an error that names the input to set."""
    python = tmp_path / "python3"
    python.write_text('#!/bin/sh\ncase $1 in --version) echo "Python 3.8.18" ;; *) exit 1 ;; esac\n', encoding="utf-8")
    python.chmod(0o755)
    done = repository.run(ready={"python": {"python-path": str(python)}})
    assert done.exit_code == 2
    assert "Python 3.10 or newer" in done.log
    assert "input 'python'" in done.log


def test_helper_refuses_what_it_does_not_understand() -> None:
    """The test helper stops at an expression or condition it cannot evaluate instead of passing it by."""
    with pytest.raises(ValueError, match="not one that the tests understand"):
        substitute("${{ github.event.pull_request.title }}", {}, {})
    with pytest.raises(ValueError, match="not one that the tests understand"):
        wanted("always()", {})
