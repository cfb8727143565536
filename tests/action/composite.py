"""Runs the steps of a composite action under bash, as the runner would.

Understands the few expressions action.yml uses and refuses every other, so that the action has to stay that simple.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import yaml

EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")
VALUE = re.compile(r"inputs\.([\w-]+)|steps\.([\w-]+)\.outputs\.([\w-]+)")
CONDITION = re.compile(r"inputs\.([\w-]+) != ''")

Steps = dict[str, dict[str, str]]


class ActionRun(NamedTuple):
    """What a workflow sees of one run of the action."""

    exit_code: int
    log: str
    outputs: dict[str, str]
    summary: str


def substitute(text: str, inputs: dict[str, str], steps: Steps) -> str:
    """Replace every expression by its value; a step that did not run has empty outputs."""

    def value(match: re.Match[str]) -> str:
        known = VALUE.fullmatch(match[1])
        if known is None:
            raise ValueError(f"expression {match[0]} is not one that the tests understand")
        return inputs[known[1]] if known[1] else steps.get(known[2], {}).get(known[3], "")

    return EXPRESSION.sub(value, text)


def wanted(condition: str | None, inputs: dict[str, str]) -> bool:
    """Whether a step's ``if`` holds."""
    if condition is None:
        return True
    known = CONDITION.fullmatch(condition)
    if known is None:
        raise ValueError(f"condition {condition!r} is not one that the tests understand")
    return inputs[known[1]] != ""


def read_outputs(path: Path) -> dict[str, str]:
    """The ``name=value`` lines of a step's output file."""
    return dict(line.split("=", 1) for line in path.read_text(encoding="utf-8").splitlines())


def run_step(step: dict[str, str], env: dict[str, str], workspace: Path, temp: Path) -> tuple[int, str, dict[str, str]]:
    """Run one ``run`` step as the runner does for ``shell: bash``; its exit code, log and outputs."""
    if step["shell"] != "bash" or EXPRESSION.search(step["run"]):
        raise ValueError(f"step {step['id']!r} needs `shell: bash` and no expression in `run`")
    script, output = temp / f"{step['id']}.sh", temp / f"{step['id']}.output"
    script.write_text(step["run"], encoding="utf-8")
    output.touch()
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
        cwd=workspace,
        env={**env, "GITHUB_OUTPUT": str(output)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, read_outputs(output)


def run_action(
    action: Path,
    workspace: Path,
    temp: Path,
    given: dict[str, str],
    environ: dict[str, str],
    ready: Steps,
    token: str = "",
) -> ActionRun:
    """Run the action in ``workspace``. Steps named in ``ready`` are not run: their outputs are what it says."""
    manifest = yaml.safe_load((action / "action.yml").read_text(encoding="utf-8"))
    if unknown := given.keys() - manifest["inputs"].keys():
        raise ValueError(f"the action has no input {', '.join(sorted(unknown))}")
    defaults = {
        name: about["default"].replace("${{ github.token }}", token) for name, about in manifest["inputs"].items()
    }
    inputs = {**defaults, **given}
    steps, log, exit_code, summary = dict(ready), "", 0, temp / "summary.md"
    summary.write_text("Written before.\n", encoding="utf-8")
    env = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ["HOME"],
        "CI": "true",
        "GITHUB_ACTIONS": "true",
        "GITHUB_ACTION_PATH": str(action),
        "GITHUB_WORKSPACE": str(workspace),
        "GITHUB_STEP_SUMMARY": str(summary),
        "RUNNER_TEMP": str(temp),
        **environ,
    }
    for step in manifest["runs"]["steps"]:
        if step["id"] in ready or exit_code or not wanted(step.get("if"), inputs):
            continue
        if "uses" in step:
            raise ValueError(f"step {step['id']!r} uses {step['uses']}: say in `ready` what it gives")
        variables = {name: substitute(text, inputs, steps) for name, text in step.get("env", {}).items()}
        exit_code, text, steps[step["id"]] = run_step(step, env | variables, workspace, temp)
        log += text
    outputs = {name: substitute(about["value"], inputs, steps) for name, about in manifest["outputs"].items()}
    return ActionRun(exit_code, log, outputs, summary.read_text(encoding="utf-8"))
