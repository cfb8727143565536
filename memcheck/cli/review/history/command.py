"""Every git command line, so that nothing of a checkout can make git run anything. The one place that starts git.

git takes commands from configuration: a folder of the checkout that looks like a bare repository brings a configuration
of its own (``core.fsmonitor``), and a path's attributes choose among the filters that the configuration has.
"""

from __future__ import annotations

import os
import subprocess
from functools import lru_cache

from memcheck.errors import UsageError

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
