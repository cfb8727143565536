"""git on a checkout that wants its own commands to run: none does, whatever the checkout or its configuration names."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from memcheck.cli.review.history.checkout import Tree
from memcheck.cli.review.history.git import open_commit
from tests.cli.plans import write
from tests.review.history.repositories import commit, edit, git
from tests.sources import trees

pytestmark = pytest.mark.slow

RUN = [sys.executable, "-I", "-m", "memcheck"]
BOTH = (["check", "--from-ref"], ["diff", "--from-ref"])


def memcheck(folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """One command in a process of its own."""
    environment = {**os.environ, **environ}
    return subprocess.run([*RUN, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """What a command of the attacker leaves behind."""
    return tmp_path / "ran"


@pytest.fixture
def command(tmp_path: Path, mark: Path) -> str:
    """A program of the attacker."""
    script = tmp_path / "command.sh"
    script.write_text(f"#!/bin/sh\necho $0 $* >> {mark}\ncat\n", encoding="utf-8")
    script.chmod(0o755)
    return str(script)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with a plan that changed since its only commit."""
    folder = tmp_path / "checkout"
    (folder / "plans").mkdir(parents=True)
    commit(folder)
    path = write(folder / "plans")
    commit(folder)
    edit(path, "micro_batch_size: 1", "micro_batch_size: 2")
    return folder


@pytest.mark.parametrize("arguments", BOTH)
def test_committed_bare_repository_runs_nothing(tmp_path: Path, mark: Path, command: str, arguments: list[str]) -> None:
    """A folder of plans that is laid out as a git repository is refused, and its file-system monitor never runs."""
    inner = tmp_path / "inner"
    inner.mkdir()
    write(inner)
    commit(inner)
    plans = tmp_path / "outer" / "plans"
    shutil.copytree(inner / ".git", plans, ignore=shutil.ignore_patterns("hooks"))
    write(plans)
    git(inner, "config", "--file", str(plans / "config"), "core.worktree", ".")
    git(inner, "config", "--file", str(plans / "config"), "core.fsmonitor", command)
    commit(tmp_path / "outer")
    git(tmp_path, "clone", "--quiet", str(tmp_path / "outer"), "cloned")
    edit(tmp_path / "cloned" / "plans" / "good.yaml", "micro_batch_size: 1", "micro_batch_size: 2")
    done = memcheck(tmp_path / "cloned" / "plans", *arguments, "HEAD")
    assert not mark.exists(), mark.read_text(encoding="utf-8")
    assert done.returncode == 2
    assert "laid out like a git repository" in done.stderr


@pytest.mark.parametrize("arguments", BOTH)
@pytest.mark.parametrize("key", ["core.fsmonitor", "diff.external", "core.pager", "core.sshCommand", "core.editor"])
def test_configured_commands_do_not_run(
    checkout: Path, mark: Path, command: str, key: str, arguments: list[str]
) -> None:
    """A command that the repository's configuration names is not run, and the plan is compared all the same."""
    git(checkout, "config", key, command)
    done = memcheck(checkout, *arguments, "HEAD")
    assert not mark.exists(), mark.read_text(encoding="utf-8")
    assert "good" in done.stdout


@pytest.mark.parametrize("arguments", [*BOTH, ["check", "--config-from-ref"]])
def test_nothing_is_written_to_the_repository(checkout: Path, arguments: list[str]) -> None:
    """No file of the checkout or of its git folder is made, changed or touched, the index neither."""

    def files() -> dict[Path, tuple[bytes, int]]:
        return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in checkout.rglob("*") if path.is_file()}

    before = files()
    assert "good" in memcheck(checkout, *arguments, "HEAD").stdout
    assert files() == before


@pytest.mark.parametrize("name", ["evil", "e=v.il"])
@pytest.mark.parametrize("kind", ["clean", "process"])
def test_filters_do_not_run(checkout: Path, mark: Path, command: str, name: str, kind: str) -> None:
    """Attributes of the tree cannot start a filter, whatever its name; what changed is found without it."""
    git(checkout, "config", f"filter.{name}.{kind}", command)
    git(checkout, "config", f"filter.{name}.required", "true")
    (checkout / ".gitattributes").write_text(f"*.yaml filter={name}\n", encoding="utf-8")
    done = memcheck(checkout, "check", "--from-ref", "HEAD")
    assert not mark.exists(), mark.read_text(encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert "good" in done.stdout


@pytest.mark.parametrize("kind", ["command", "textconv"])
def test_diff_drivers_do_not_run(checkout: Path, mark: Path, command: str, kind: str) -> None:
    """Attributes of the tree cannot start a diff driver."""
    git(checkout, "config", f"diff.evil.{kind}", command)
    (checkout / ".gitattributes").write_text("*.yaml diff=evil\n", encoding="utf-8")
    done = memcheck(checkout, "diff", "--from-ref", "HEAD")
    assert not mark.exists()
    assert "good" in done.stdout


def test_hooks_do_not_run(checkout: Path, mark: Path, command: str) -> None:
    """No hook of the repository is started, and its index is left as it is."""
    for name in ("post-index-change", "reference-transaction", "post-checkout"):
        shutil.copy(command, checkout / ".git" / "hooks" / name)
    os.utime(checkout / "plans" / "good.yaml")
    before = (checkout / ".git" / "index").read_bytes()
    memcheck(checkout, "diff", "--from-ref", "HEAD")
    assert not mark.exists()
    assert (checkout / ".git" / "index").read_bytes() == before


def test_partial_clone_fetches_nothing(checkout: Path, mark: Path, command: str, tmp_path: Path) -> None:
    """A missing object is an error: the remote that the configuration names, a command at that, is not asked."""
    git(checkout, "config", "uploadpack.allowFilter", "true")
    clone = tmp_path / "partial"
    git(tmp_path, "clone", "--quiet", "--no-checkout", "--filter=blob:none", checkout.as_uri(), str(clone))
    git(clone, "config", "remote.origin.url", f"ext::{command}")
    git(clone, "config", "protocol.ext.allow", "always")
    write(clone)
    done = memcheck(clone, "diff", "--from-ref", "HEAD", ".")
    assert not mark.exists(), mark.read_text(encoding="utf-8")
    assert done.returncode == 2
    assert "git lacks object" in done.stderr
    assert "fetches nothing" in done.stderr


@pytest.mark.parametrize("name", ["GIT_EXTERNAL_DIFF", "GIT_PAGER", "GIT_SSH_COMMAND", "GIT_ASKPASS"])
def test_commands_of_the_environment_do_not_run(checkout: Path, mark: Path, command: str, name: str) -> None:
    """A variable that names a command for git is not handed on."""
    done = memcheck(checkout, "diff", "--from-ref", "HEAD", **{name: command})
    assert not mark.exists()
    assert "good" in done.stdout


@pytest.mark.parametrize("path", ["", ".", "plans"])
def test_git_of_the_checkout_is_not_used(checkout: Path, mark: Path, command: str, path: str) -> None:
    """A program called git in the working directory is not run, even where PATH names that directory."""
    for folder in (checkout, checkout / "plans"):
        shutil.copy(command, folder / "git")
    done = memcheck(checkout, "check", "--from-ref", "HEAD", PATH=os.pathsep.join([path, os.environ["PATH"]]))
    assert not mark.exists()
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("ref", ["--output=stolen", "--no-index", "-", "--exec=touch stolen", "HEAD --output=stolen"])
def test_ref_is_no_option(checkout: Path, ref: str) -> None:
    """What looks like an option of git is no ref."""
    done = memcheck(checkout, "check", f"--from-ref={ref}")
    assert done.returncode == 2
    assert not list(checkout.rglob("*stolen*"))


def test_what_a_hook_is_handed_reaches_git(checkout: Path) -> None:
    """GIT_DIR, GIT_INDEX_FILE and stated settings reach memcheck inside a hook, and it works there."""
    environ = {
        "GIT_DIR": ".git",
        "GIT_INDEX_FILE": str(checkout / ".git" / "index"),
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
    }
    done = memcheck(checkout, "check", "--from-ref", "HEAD", **environ)
    assert done.returncode == 0, done.stderr
    assert "good" in done.stdout


def test_linked_worktree_works(checkout: Path, tmp_path: Path) -> None:
    """A worktree beside the repository, whose `.git` is a file, is compared like any other."""
    git(checkout, "worktree", "add", "--quiet", str(tmp_path / "beside"))
    edit(tmp_path / "beside" / "plans" / "good.yaml", "micro_batch_size: 1", "micro_batch_size: 2")
    done = memcheck(tmp_path / "beside", "check", "--from-ref", "HEAD")
    assert done.returncode == 0, done.stderr
    assert "good" in done.stdout


STARTERS = {"subprocess", "_posixsubprocess", "multiprocessing", "pty", "popen2", "asyncio"}
CALLS = {"system", "popen", "startfile", "fork", "forkpty", "posix_spawn", "posix_spawnp"}
ONLY = Path("memcheck/cli/review/history/git.py")
OWN_PROCESSES = (Path("memcheck/cli/pool.py"), Path("memcheck/live/server.py"))
"""Copies of memcheck itself, which judge plans beside it (`--jobs`) or answer the page of `memcheck ui`."""
ON_REQUEST = (Path("memcheck/cli/run.py"), Path("memcheck/cli/submit.py"))
"""`memcheck run -- COMMAND` and `memcheck submit -- COMMAND` start the command that they are given, and nothing else."""


def test_one_module_starts_processes(root: Path) -> None:
    """No other module of the package can start git, or anything else: none imports or calls what starts a process."""
    found = set()
    for path, tree in trees(root / "memcheck", STARTERS | CALLS | {"exec", "spawn"}):
        guarded = {
            id(inner)
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
            for inner in ast.walk(node)
        }
        for node in ast.walk(tree):
            names: list[str] = []
            if id(node) in guarded:
                continue
            if isinstance(node, ast.Import):
                names = [alias.name.partition(".")[0] for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [(node.module or "").partition(".")[0]]
            starts = bool(STARTERS.intersection(names))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                of_os = getattr(node.func.value, "id", "") == "os"
                starts |= of_os and (node.func.attr in CALLS or node.func.attr.startswith(("exec", "spawn")))
            if starts:
                found.add(path.relative_to(root))
    assert found == {ONLY, *OWN_PROCESSES, *ON_REQUEST}


def made_by_hand(folder: Path, entries: dict[bytes, bytes]) -> str:
    """A commit of a tree with files under names that git itself would not commit."""

    def kept(kind: str, data: bytes) -> bytes:
        line = ["git", "hash-object", "-w", "--literally", "-t", kind, "--stdin"]
        return subprocess.run(line, cwd=folder, input=data, capture_output=True, check=True).stdout.strip()

    rows = (b"100644 " + name + b"\0" + bytes.fromhex(kept("blob", data).decode()) for name, data in entries.items())
    who = b"a <a@b> 0 +0000"
    tree = kept("tree", b"".join(rows))
    return kept("commit", b"tree %s\nauthor %s\ncommitter %s\n\nx\n" % (tree, who, who)).decode()


@pytest.mark.parametrize("option", [["check", "--from-ref"], ["diff", "--from-ref"], ["check", "--config-from-ref"]])
def test_files_that_no_checkout_has_are_not_written(checkout: Path, tmp_path: Path, option: list[str]) -> None:
    """Paths of a commit that lead out of it are no files, whoever names them, and comparing ends."""
    outside = tmp_path / "stolen.yaml"
    plan = (checkout / "plans" / "good.yaml").read_bytes()
    extending = b"extends: ../../../stolen.yaml\n" + plan
    commit = made_by_hand(
        checkout,
        {
            b"../../stolen.yaml": plan,
            bytes(outside): plan,
            b".git/stolen.yaml": plan,
            b"a/./b.yaml": plan,
            b"plans/good.yaml": extending,
            b"memcheck.toml": b"",
        },
    )
    held = tmp_path / "a" / "b"
    held.mkdir(parents=True)
    done = memcheck(checkout, *option, commit, "--", "plans", TMPDIR=str(held))
    assert done.returncode in (0, 1, 2)
    assert "defect" not in done.stderr
    assert not list(tmp_path.rglob("*stolen*"))


def test_a_large_file_of_a_commit_is_not_held(checkout: Path) -> None:
    """Of a file of an earlier commit so much is read as counts, and what is read next is the next file."""
    (checkout / "large.yaml").write_bytes(b"memcheck: 1\n#" + b" " * 3_000_000)
    (checkout / "small.yaml").write_bytes(b"memcheck: 1\n")
    commit(checkout)
    with closing(Tree(open_commit("HEAD", "--from-ref", str(checkout)))) as tree:
        assert tree.read("large.yaml", 1000) == b"memcheck: 1\n#" + b" " * 988
        assert tree.read("small.yaml", 1000) == b"memcheck: 1\n"
        assert tree.read("small.yaml", 5) == b"memche"
        assert tree.read("none.yaml", 5) is None
