"""The package's build takes the page of its own version, and builds without one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from memcheck import __version__

pytestmark = [pytest.mark.slow, pytest.mark.network]


@pytest.fixture(scope="module")
def checkout(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the build needs of the checkout, with a package of two modules."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("pyproject.toml", "README.md", "LICENSE", "release", "schemas"):
        source = root / name
        shutil.copytree(source, copy / name) if source.is_dir() else shutil.copy(source, copy / name)
    (copy / "memcheck" / "live").mkdir(parents=True)
    shutil.copy(root / "memcheck" / "__init__.py", copy / "memcheck")
    (copy / "memcheck" / "live" / "__init__.py").write_text("")
    (copy / ".gitignore").write_text("/memcheck/live/page/\n/backend/\n")
    backend = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-compile",
        "--target",
        str(copy / "backend"),
        "hatchling",
    ]
    if subprocess.run(backend, capture_output=True, check=False).returncode:
        pytest.skip("the package index cannot be reached")
    return copy


def build(checkout: Path) -> subprocess.CompletedProcess[str]:
    """Build the wheel of a checkout into its folder ``built``, as pip has the backend do."""
    words = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", "built"]
    environ = {**os.environ, "PYTHONPATH": str(checkout / "backend")}
    return subprocess.run(words, cwd=checkout, env=environ, capture_output=True, text=True, check=False)


def page(checkout: Path, version: str | None) -> None:
    """Put a page of some version there."""
    folder = checkout / "memcheck" / "live" / "page"
    shutil.rmtree(folder, ignore_errors=True)
    if version is not None:
        folder.mkdir()
        (folder / "index.html").write_text("<!doctype html>")
        (folder / "version.json").write_text(f'{{"version": "{version}"}}')


def wheel(checkout: Path) -> list[str]:
    (built,) = (checkout / "built").glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        return archive.namelist()


def test_wheel_carries_the_page_of_its_version(checkout: Path) -> None:
    """A wheel is built without a page, and with one of its version."""
    page(checkout, None)
    assert build(checkout).returncode == 0
    assert not any("ui/page" in name for name in wheel(checkout))
    page(checkout, __version__)
    assert build(checkout).returncode == 0
    assert {"memcheck/live/page/index.html", "memcheck/live/page/version.json"} <= set(wheel(checkout))


def test_page_of_another_version_is_refused(checkout: Path) -> None:
    """The message names both versions."""
    page(checkout, "0.0.1")
    refused = build(checkout)
    assert refused.returncode != 0
    assert f"is of version 0.0.1, and the package is {__version__}" in refused.stderr + refused.stdout


def test_folder_that_is_no_page_is_refused(checkout: Path) -> None:
    """Something else in the page's folder stops the build."""
    page(checkout, __version__)
    (checkout / "memcheck" / "live" / "page" / "version.json").write_text("[]")
    refused = build(checkout)
    assert refused.returncode != 0
    assert "is no built page" in refused.stderr + refused.stdout
