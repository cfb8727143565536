"""Asks git for an earlier state. Imported only where a command names a ref: the one place that starts a process."""

from __future__ import annotations

import os
import subprocess

from memcheck.errors import UsageError
from memcheck.record import Record

FETCH = "fetch the whole history: `fetch-depth: 0` for actions/checkout, `git fetch --unshallow` elsewhere"


class Base(Record):
    """The commit that the working tree is compared with."""

    root: str
    """The top of the working tree, without symbolic links."""
    commit: str
    label: str
    """The ref as it was asked for and, where that is a branch, the merge base that is used."""


def git(folder: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """One git command that changes nothing, whatever it answers.

    Raises:
        UsageError: there is no git.
    """
    # Messages are shown as they are and no lock is taken: another git may be at work in the same tree.
    environment = {**os.environ, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"}
    command = ["git", "-c", "diff.relative=false", "-C", folder, *arguments]
    try:
        return subprocess.run(command, capture_output=True, env=environment, check=False)  # noqa: S603
    except OSError as error:
        raise UsageError(
            f"cannot run git: {error.strerror or error}", "--from-ref reads the earlier plans with git"
        ) from error


def answer(folder: str, *arguments: str) -> bytes:
    """What a git command prints that has to succeed.

    Raises:
        UsageError: it does not.
    """
    done = git(folder, *arguments)
    if done.returncode:
        raise UsageError(f"git {arguments[0]} failed: {_said(done)}", "--from-ref works inside a git repository")
    return done.stdout


def open_base(ref: str, folder: str = ".") -> Base:
    """The commit to compare with: the merge base where ``ref`` is a branch, else the commit that it names.

    Raises:
        UsageError: no repository, no such ref, or a clone too shallow to tell. Never another commit instead.
    """
    root = os.path.realpath(os.fsdecode(answer(folder, "rev-parse", "--show-toplevel").rstrip(b"\r\n")))
    if not ref or ref.startswith("-"):
        raise UsageError(f"{ref!r} is not a git ref", "--from-ref takes a branch, a tag or a commit")
    # A pull request is checked out without local branches: `main` is only there as `origin/main`.
    for name in (ref, f"origin/{ref}"):
        found = git(root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        if not found.returncode:
            commit = found.stdout.decode().strip()
            break
    else:
        raise UsageError(
            f"no ref {ref!r} in this {_clone(root)}", FETCH if _shallow(root) else f"git fetch origin {ref}"
        )
    full = git(root, "rev-parse", "--symbolic-full-name", name).stdout.decode(errors="replace").strip()
    if not full.startswith(("refs/heads/", "refs/remotes/")):
        return Base(root, commit, f"{ref} ({commit[:8]})")
    done = git(root, "merge-base", commit, "HEAD")
    if done.returncode:
        message = f"no common ancestor of {name} and HEAD in this {_clone(root)}"
        raise UsageError(message, FETCH if _shallow(root) else "name a commit to compare with instead of a branch")
    commit = done.stdout.decode().split()[0]
    return Base(root, commit, f"{name} (merge base {commit[:8]})")


def differing(base: Base) -> frozenset[str]:
    """Tracked files, from the root, that are not what they were at the base: changed, deleted or new in the index."""
    names = answer(
        base.root,
        "diff",
        "--name-only",
        "-z",
        "--no-renames",
        "--no-ext-diff",
        "--ignore-submodules",
        base.commit,
        "--",
    )
    return frozenset(os.fsdecode(name) for name in names.split(b"\0") if name)


def _shallow(root: str) -> bool:
    return git(root, "rev-parse", "--is-shallow-repository").stdout.strip() == b"true"


def _clone(root: str) -> str:
    return "shallow clone" if _shallow(root) else "repository"


def _said(done: subprocess.CompletedProcess[bytes]) -> str:
    return done.stderr.decode(errors="replace").strip().partition("\n")[0] or f"exit code {done.returncode}"
