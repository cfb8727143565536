"""Fixtures for the whole suite."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


STARTS = ("torch", "browser", "slurm")
"""Marks of what is slow to start: each test of CI is in one section."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out files without the mark that ``-m`` begins with: to import them all takes longer than some sections do."""
    first, _, rest = str(config.option.markexpr).partition(" ")
    marks = (*STARTS, "slow") if first == "slow" else (first,)
    if first not in (*STARTS, "slow") or " or " in rest or not collection_path.name.startswith("test_"):
        return None
    text = collection_path.read_text("utf-8")
    return None if any(f"mark.{mark}" in text for mark in marks) else True


def pytest_configure() -> None:
    """Where the environment forbids bytecode beside the sources, tests and the commands that they run keep it apart.

    Otherwise each worker would rewrite 600 test files before it starts, and each command compile the package anew.
    """
    if sys.dont_write_bytecode:
        sys.dont_write_bytecode = False
        sys.pycache_prefix = str(ROOT / ".pytest_cache" / "bytecode")
        os.environ.pop("PYTHONDONTWRITEBYTECODE", "")
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
    from hypothesis import HealthCheck, settings

    settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("busy")  # a machine that has other work is slow, and no finding


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks as slow whatever starts PyTorch, a browser or Slurm, before ``-m`` selects: each test is in one section of CI."""
    for item in items:
        if any(map(item.get_closest_marker, STARTS)):
            item.add_marker("slow")


@pytest.fixture(autouse=True, scope="session")
def _interruptible() -> None:
    """Undoes the SIGINT that a shell ignores for its background jobs: children inherit that, and would not end."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def _screen_of_nobody() -> None:
    """Takes the width of somebody's terminal out of the environment; pytest-xdist puts one there for its workers."""
    os.environ.pop("COLUMNS", None)


@pytest.fixture(autouse=True, scope="session")
def _nothing_kept() -> None:
    """Every test judges anew: a verdict that an earlier run kept would hide what a change breaks."""
    os.environ["MEMCHECK_NO_CACHE"] = "1"


@pytest.fixture(scope="session")
def root() -> Path:
    """The top of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def package_index(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skips the test where pip cannot reach a package index."""
    folder = tmp_path_factory.mktemp("index")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--retries=0", "--timeout=10"]
    if subprocess.run([*command, "--dest", str(folder), "hatchling"], capture_output=True, check=False).returncode:
        pytest.skip("no package index within reach")


@pytest.fixture(scope="session")
def tracked_files(root: Path) -> list[Path]:
    """Every file under version control; skips the test outside a git checkout."""
    if not (root / ".git").exists():
        pytest.skip("not a git checkout")
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True, text=True).stdout
    return [root / name for name in listing.split("\0") if name and (root / name).is_file()]
