"""Runs ``memcheck diff`` for the GitHub Action: what the pull request does to memory, in log, summary and comment."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from typing import Any, NamedTuple

import comment

MODES = ("off", "update")


class InputError(Exception):
    """An input of the action that cannot be used; the message says which and why."""


class Comparison(NamedTuple):
    """What became of it."""

    exit_code: int = 0
    outputs: dict[str, object] = {}  # noqa: RUF012 - never changed


def base_ref() -> str:
    """What to compare with: the input, and for the comment of a pull request the branch that it goes to."""
    stated = os.environ.get("INPUT_BASE_REF", "").strip()
    return stated or (os.environ.get("GITHUB_BASE_REF", "") if mode() == "update" else "")


def mode() -> str:
    """The input ``comment``."""
    return os.environ.get("INPUT_COMMENT", "").strip().lower() or "off"


def environment() -> dict[str, str]:
    """What memcheck itself runs in: the token is for the comment alone."""
    return {name: value for name, value in os.environ.items() if name != "INPUT_GITHUB_TOKEN"}


def strictness() -> list[str]:
    """The options that take the policy out of the pull request's hands, for ``check`` and ``diff`` alike."""
    stated = os.environ.get("INPUT_SUPPRESSIONS", "").strip().lower() or "true"
    if stated not in {"true", "false"}:
        raise InputError("the input 'suppressions' is not one of true, false")
    ref = os.environ.get("INPUT_CONFIG_FROM_REF", "").strip()
    return ["--no-suppressions"] * (stated == "false") + [f"--config-from-ref={ref}"] * bool(ref)


def compare(memcheck: list[str], paths: list[str], folder: str, temp: str, summary: str | None) -> Comparison:
    """Compare with the base, if there is one, and post what moved."""
    base = base_ref()
    results: dict[str, object] = {"comment": "off" if mode() == "off" else "skipped"}
    if not base:
        return Comparison(0, results)
    document, text = os.path.join(temp, "diff.json"), os.path.join(temp, "diff.md")
    argv = [*memcheck, "diff", f"--from-ref={base}", "--allow-empty", "--quiet", "--format=full"]
    argv += [f"--format=json={document}", f"--format=markdown={text}"]
    argv += [f"--format=markdown={summary}"] if summary else []
    for option in ("config", "min-delta", "fail-on-increase"):
        if value := os.environ.get(f"INPUT_{option.replace('-', '_').upper()}", "").strip():
            argv.append(f"--{option}={value}")
    exit_code = shown([*argv, *strictness(), "--", *paths], folder)
    if exit_code > 1:
        help = "if it is missing in the clone, set `fetch-depth: 0` on actions/checkout"
        print(f"::error title=memcheck::memcheck could not compare with {inline(base)}; {help}; the log says more")
        return Comparison(exit_code, results)
    with open(document, encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    if exit_code:
        limit = inline(os.environ.get("INPUT_FAIL_ON_INCREASE", ""))
        print(f"::error title=memcheck::A plan needs over {limit} more memory than at {inline(base)}")
    if mode() == "update":
        results["comment"] = post(text)
    counts = found["summary"]
    return Comparison(
        exit_code,
        {
            **results,
            "changed": len(found["changes"]),
            "regressions": counts["fails_now"],
            "largest-increase-bytes": counts["largest_increase_bytes"],
            "diff-json": document,
        },
    )


def shown(argv: list[str], folder: str) -> int:
    """Run a command with its output in a group of the log, where nothing it prints can speak to the runner."""
    stop = secrets.token_hex(16)
    print(f"::group::memcheck: what changed\n::stop-commands::{stop}", flush=True)
    code = subprocess.run(argv, cwd=folder, env=environment(), stderr=subprocess.STDOUT, check=False).returncode
    print(f"::{stop}::\n::endgroup::", flush=True)
    return code


def post(path: str) -> str:
    """Bring the comment up to date; a refusal is a notice, because pull requests from forks have no say in it."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    try:
        return comment.update(text)
    except comment.RefusedError as error:
        rights = "it takes `pull-requests: write`, which pull requests from forks never get"
        print(f"::notice title=memcheck::No comment: {inline(str(error))}; {rights}. The job summary says the same.")
        return "refused"


def inline(text: str) -> str:
    """Text inside a workflow command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
