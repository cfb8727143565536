"""Runs ``memcheck check`` once for the GitHub Action, and ``diff`` where there is a base to compare with."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile

# Isolated mode leaves out the script's own folder, too.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from comparison import MODES, Comparison, InputError, compare, environment, inline, mode, strictness
from wildcards import expanded

OPTIONS = {
    "--config": "INPUT_CONFIG",
    "--fail-on": "INPUT_FAIL_ON",
    "--fail-above": "INPUT_FAIL_ABOVE",
    "--warn-above": "INPUT_WARN_ABOVE",
}
MEMCHECK = [sys.executable, "-I", "-X", "utf8", "-m", "memcheck"]
"""Isolated: without ``-I``, ``-m`` would look for modules in the checked repository first."""


def command(report_path: str) -> list[str]:
    """The one memcheck command: the log with its annotations, the report, and the job summary, which it appends to."""
    if mode() not in MODES:
        raise InputError(f"the input 'comment' is not one of {', '.join(MODES)}")
    argv = [*MEMCHECK, "check", "--no-cache", "--format", "github"]  # on a self-hosted runner other jobs may write it
    argv += ["--format", f"json={report_path}"]
    if path := summary():
        argv += ["--format", f"markdown={path}"]
    for option, name in OPTIONS.items():
        if value := os.environ.get(name, "").strip():
            argv.append(f"{option}={value}")
    return [*argv, *strictness(), *words("INPUT_ARGS"), "--", *paths()]


def summary() -> str | None:
    """The job summary's file, if it is wanted."""
    wanted = os.environ.get("INPUT_SUMMARY", "true").strip().lower() != "false"
    return os.environ["GITHUB_STEP_SUMMARY"] if wanted else None


def paths() -> list[str]:
    """The paths to check, patterns expanded."""
    return [path for word in words("INPUT_PATHS") for path in expanded(word, folder())]


def words(name: str) -> list[str]:
    """The words of an input, split as a shell would."""
    try:
        return shlex.split(os.environ.get(name, ""))
    except ValueError as error:
        label = name.removeprefix("INPUT_").lower()
        raise InputError(f"the input '{label}' cannot be split into words: {error}") from error


def folder() -> str:
    """The folder to run in: from there on, no path would be a link out of the workspace."""
    path = os.environ.get("INPUT_WORKING_DIRECTORY") or "."
    if not os.path.isdir(path):
        raise InputError("the input 'working-directory' names no folder of the workspace")
    workspace, real = os.path.realpath(os.curdir), os.path.realpath(path)
    if real != os.path.abspath(path) and os.path.commonpath((workspace, real)) != workspace:
        raise InputError("the input 'working-directory' is a link that leads out of the workspace")
    return path


def outputs(exit_code: int, report_path: str) -> dict[str, object]:
    """The action's outputs; after a usage error there is no report and the counts are zero."""
    report = {}
    if os.path.exists(report_path):
        with open(report_path, encoding="utf-8") as file:
            report = json.load(file)
    summary = report.get("summary", {})
    estimates = [plan["estimate"] for plan in report.get("plans", []) if plan.get("estimate")]
    return {
        "exit-code": exit_code,
        "plans": summary.get("plans", 0),
        "failed": summary.get("failed", 0),
        "errors": summary.get("errors", 0),
        "warnings": summary.get("warnings", 0),
        "max-utilization": max((estimate["utilization"] for estimate in estimates), default=""),
        "report-json": report_path if report else "",
    }


def main() -> int:
    """Run memcheck, hand its results to the runner, and return its exit code."""
    temp = tempfile.mkdtemp(prefix="memcheck-", dir=os.environ["RUNNER_TEMP"])
    report_path = os.path.join(temp, "report.json")
    failure = "memcheck could not do its work; the log says why"
    compared = Comparison()
    try:
        exit_code = subprocess.run(command(report_path), cwd=folder(), env=environment(), check=False).returncode
        if exit_code <= 1:
            compared = compare(MEMCHECK, paths(), folder(), temp, summary())
    except InputError as error:
        exit_code, failure = 2, str(error)
    if exit_code > 1:
        print(f"::error title=memcheck::{inline(failure)} (exit code {exit_code})")
    results = {**outputs(exit_code, report_path), **compared.outputs}
    exit_code = results["exit-code"] = max(exit_code, compared.exit_code)
    with open(os.environ["GITHUB_OUTPUT"], "a", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{name}={value}\n" for name, value in results.items())
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
