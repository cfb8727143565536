"""Asks git for an earlier state. Imported only where a command names a ref.

Where a file lies in its repository.

Every git command line, so that nothing of a checkout can make git run anything. The one place that starts git.

git takes commands from configuration: a folder of the checkout that looks like a bare repository brings a configuration
of its own (``core.fsmonitor``), and a path's attributes choose among the filters that the configuration has.
"""

from __future__ import annotations

import os
import subprocess
from functools import lru_cache

from memcheck.errors import UsageError
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from subprocess import CompletedProcess


SETTINGS = (
    "safe.bareRepository=explicit",
    "core.bigFileThreshold=4m",  # what is larger is handed on in pieces, and not held
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.pager=cat",
    "core.sshCommand=false",
    "credential.helper=",
    "diff.external=",
    "diff.relative=false",
    "protocol.allow=never",
)
"""What goes before every configuration file. git knows the first since 2.38; :func:`refuse_bare` is for any git."""
DROPPED = (
    "GIT_ASKPASS",
    "GIT_CONFIG",
    "GIT_DIFF_OPTS",
    "GIT_EDITOR",
    "GIT_EXTERNAL_DIFF",
    "GIT_PAGER",
    "GIT_PROXY_COMMAND",
    "GIT_SEQUENCE_EDITOR",
    "GIT_SSH",
    "GIT_SSH_COMMAND",
    "SSH_ASKPASS",
)
"""Variables that name commands. GIT_DIR and its kin stay: a hook is told by them which repository it is in."""
ANSWERS = {
    "LC_ALL": "C",  # messages are shown as they are
    "GIT_OPTIONAL_LOCKS": "0",  # another git may be at work in the same tree; and no hook hears of a refreshed index
    "GIT_ALLOW_PROTOCOL": "",  # goes before `protocol.*.allow`: a partial clone fetches nothing
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_TERMINAL_PROMPT": "0",
}


def git(folder: str, *arguments: str, settings: tuple[tuple[str, str], ...] = ()) -> subprocess.CompletedProcess[bytes]:
    """One git command that changes nothing, whatever it answers.

    ``settings``: keys and values that go before every configuration file; any key will do.

    Raises:
        UsageError: there is no git, or the folder lies in what passes for a repository inside another.
    """
    line, environment = _line(folder, arguments), _environment(settings)
    try:
        return subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, env=environment, check=False)  # noqa: S603
    except OSError as error:
        raise _no_git(error.strerror or str(error)) from error


def converse(folder: str, *arguments: str) -> subprocess.Popen[bytes]:
    """A git command that answers on its stdout what it is asked on its stdin.

    Raises:
        UsageError: as :func:`git`.
    """
    line, environment = _line(folder, arguments), _environment(())
    try:
        return subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)  # noqa: S603
    except OSError as error:
        raise _no_git(error.strerror or str(error)) from error


def refuse_bare(folder: str) -> None:
    """Stop at a folder that git would take for a bare repository before it meets the one that it is in.

    Raises:
        UsageError: there is one, and GIT_DIR does not name it.
    """
    if os.environ.get("GIT_DIR"):
        return
    place = os.path.realpath(folder)
    while not os.path.lexists(os.path.join(place, ".git")):
        inside = (os.path.lexists(os.path.join(place, name)) for name in ("commondir", "refs"))
        if os.path.lexists(os.path.join(place, "HEAD")) and any(inside):
            raise UsageError(
                f"{os.path.relpath(place)} is laid out like a git repository, whose configuration could run commands",
                "run memcheck in a working tree; no folder of it may hold both HEAD and refs",
            )
        above = os.path.dirname(place)
        if above == place:
            return
        place = above


def _line(folder: str, arguments: tuple[str, ...]) -> list[str]:
    refuse_bare(folder)
    stated = [part for setting in SETTINGS for part in ("-c", setting)]
    return [_program(os.environ.get("PATH", os.defpath)), *stated, "--no-pager", "-C", folder, *arguments]


@lru_cache(maxsize=4)
def _program(path: str) -> str:
    """The git of PATH, never one of the working directory: Windows looks there first, and PATH may name ``.``."""
    names = ("git.exe",) if os.name == "nt" else ("git",)
    for folder in path.split(os.pathsep):
        for name in names:
            program = os.path.join(folder, name)
            if os.path.isabs(folder) and os.path.isfile(program) and os.access(program, os.X_OK):
                return program
    raise _no_git("there is none in an absolute folder of PATH")


def _environment(settings: tuple[tuple[str, str], ...]) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name not in DROPPED} | ANSWERS
    stated = environment.get("GIT_CONFIG_COUNT", "0")
    count = int(stated) if stated.isdecimal() else 0
    for number, (key, value) in enumerate(settings, count):
        environment |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    environment["GIT_CONFIG_COUNT"] = str(count + len(settings))
    return environment


def _no_git(why: str) -> UsageError:
    return UsageError(f"cannot run git: {why}", "earlier plans and configurations are read with git")


FETCH = "fetch the whole history: `fetch-depth: 0` for actions/checkout, `git fetch --unshallow` elsewhere"


class Base(Record):
    """The commit that the working tree is compared with."""

    root: str
    """The top of the working tree, without symbolic links."""
    commit: str
    label: str
    """The ref as it was asked for and, where that is a branch, the merge base that is used."""


def answer(
    folder: str, *arguments: str, settings: tuple[tuple[str, str], ...] = (), option: str = "--from-ref"
) -> bytes:
    """What a git command prints that has to succeed; ``option`` is what asked for it.

    Raises:
        UsageError: it does not.
    """
    done = git(folder, *arguments, settings=settings)
    if done.returncode:
        raise UsageError(f"git {arguments[0]} failed: {_said(done)}", f"{option} works inside a git repository")
    return done.stdout


def open_base(ref: str) -> Base:
    """The commit to compare with: the merge base where ``ref`` is a branch, else the commit that it names.

    Raises:
        UsageError: no repository, no such ref, or a clone too shallow to tell. Never another commit instead.
    """
    root, name, commit = _resolved(ref, ".", "--from-ref")
    full = git(root, "rev-parse", "--verify", "--symbolic-full-name", "--end-of-options", name)
    if not full.stdout.startswith((b"refs/heads/", b"refs/remotes/")):
        return Base(root, commit, f"{ref} ({commit[:8]})")
    done = git(root, "merge-base", "--end-of-options", commit, "HEAD")
    if done.returncode:
        message = f"no common ancestor of {name} and HEAD in this {_clone(root)}"
        raise UsageError(message, FETCH if _shallow(root) else "name a commit to compare with instead of a branch")
    commit = done.stdout.decode().split()[0]
    return Base(root, commit, f"{name} (merge base {commit[:8]})")


def open_commit(ref: str, option: str, folder: str = ".") -> Base:
    """The very commit that ``ref`` names, of a branch its tip; ``option`` is what asked for it.

    Raises:
        UsageError: no repository, or no such ref.
    """
    root, name, commit = _resolved(ref, folder, option)
    return Base(root, commit, f"{name} ({commit[:8]})")


def _resolved(ref: str, folder: str, option: str) -> tuple[str, str, str]:
    """The top of the working tree, the name under which git knows the ref, and its commit."""
    root = os.path.realpath(os.fsdecode(answer(folder, "rev-parse", "--show-toplevel", option=option).rstrip(b"\r\n")))
    if not ref or ref.startswith("-"):
        raise UsageError(f"{ref!r} is not a git ref", f"{option} takes a branch, a tag or a commit")
    # A pull request is checked out without local branches: `main` is only there as `origin/main`.
    for name in (ref, f"origin/{ref}"):
        found = git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        if not found.returncode:
            return root, name, found.stdout.decode().strip()
    raise UsageError(f"no ref {ref!r} in this {_clone(root)}", FETCH if _shallow(root) else f"git fetch origin {ref}")


def differing(base: Base) -> frozenset[str]:
    """Tracked files, from the root, that are not what they were at the base: changed, deleted or new in the index.

    Submodules are left alone: git would look into each with the configuration that it has.
    """
    names = answer(
        base.root,
        "diff",
        "--name-only",
        "-z",
        "--no-renames",
        "--no-ext-diff",
        "--no-textconv",
        "--ignore-submodules=all",
        "--end-of-options",
        base.commit,
        "--",
        settings=_without_filters(base.root),
    )
    return frozenset(os.fsdecode(name) for name in names.split(b"\0") if name)


def _without_filters(root: str) -> tuple[tuple[str, str], ...]:
    """Settings that switch every configured filter off: files are compared as they lie there, and no command is run."""
    found = git(root, "config", "--null", "--name-only", "--get-regexp", r"^filter\.")
    keys = (os.fsdecode(key) for key in found.stdout.split(b"\0") if key)
    drivers = dict.fromkeys(key.rpartition(".")[0] for key in keys)
    off = (("clean", ""), ("smudge", ""), ("process", ""), ("required", "false"))
    return tuple((f"{driver}.{name}", value) for driver in drivers for name, value in off)


def _shallow(root: str) -> bool:
    return git(root, "rev-parse", "--is-shallow-repository").stdout.strip() == b"true"


def _clone(root: str) -> str:
    return "shallow clone" if _shallow(root) else "repository"


def _said(done: CompletedProcess[bytes]) -> str:
    return done.stderr.decode(errors="replace").strip().partition("\n")[0] or f"exit code {done.returncode}"


def inside_of(base: Base, path: str, option: str = "--from-ref") -> str:
    """A path from the repository's root, with forward slashes; the file itself may be a link.

    ``option`` is what asks for it.

    Raises:
        UsageError: it lies outside.
    """
    folder, name = os.path.split(os.path.normpath(path))
    full = os.path.normpath(os.path.join(os.path.realpath(folder or "."), name))
    if full != base.root and not full.startswith(base.root.rstrip(os.sep) + os.sep):
        raise UsageError(f"{path} lies outside the repository", f"{option} looks at the files of one git repository")
    inside = os.path.relpath(full, base.root).replace(os.sep, "/")
    return "" if inside == "." else inside
