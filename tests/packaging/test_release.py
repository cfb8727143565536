"""What a release is built of: its script, its recipe, its image and its workflow."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

import memcheck

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TAG = f"v{memcheck.__version__}"


def make(root: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the script of a release in a checkout."""
    command = [sys.executable, root / "release" / "make.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def checkout(root: Path, tmp_path: Path) -> Path:
    """A copy of what a release reads, with a changelog whose version has a section."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in ("memcheck", "schemas", "release"):
        shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("README.md", "LICENSE", "pyproject.toml", ".pre-commit-hooks.yaml", "CHANGELOG.md"):
        shutil.copy(root / name, folder)
    changes = (folder / "CHANGELOG.md").read_text(encoding="utf-8")
    dated = changes.replace("[Unreleased]", f"[{memcheck.__version__}]", 1)
    (folder / "CHANGELOG.md").write_text(dated, encoding="utf-8")
    return folder


def test_a_tag_of_another_version_is_refused(root: Path, tmp_path: Path) -> None:
    """The tag and the package have one version, and the message says which."""
    done = make(root, "v99.0.0", "--out", tmp_path / "built")
    assert done.returncode == 2
    assert f"tag {TAG}" in done.stderr
    assert not (tmp_path / "built").exists()


def test_a_version_without_a_section_is_refused(root: Path, tmp_path: Path) -> None:
    """A release says what changed."""
    changes = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    if f"## [{memcheck.__version__}]" in changes:
        pytest.skip("the changelog has a section of this version")
    done = make(root, TAG, "--out", tmp_path / "built")
    assert (done.returncode, "rename `[Unreleased]`" in done.stderr) == (2, True)


def test_the_recipe_needs_what_the_package_needs(root: Path) -> None:
    """conda-forge's recipe lists the dependencies of pyproject.toml, under conda's own spelling."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {re.sub(r";.*", "", each).strip().lower().replace(">=", " >=") for each in project["dependencies"]}
    text = (root / "release" / "conda-forge" / "recipe.yaml").read_text(encoding="utf-8")
    recipe = yaml.safe_load(text.replace("{owner}", "owner"))
    assert {each for each in recipe["requirements"]["run"] if not each.startswith("python ")} == needed
    assert recipe["about"]["license"] == project["license"]
    entry = recipe["build"]["python"]["entry_points"]
    assert entry == [f"memcheck = {project['scripts']['memcheck']}"]


def test_the_image_has_no_root(root: Path) -> None:
    """The last user of the image is a number that is not 0, and only the wheel is sent to the builder."""
    lines = (root / "release" / "Dockerfile").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("USER ")][-1] == "USER 10001"
    sent = (root / ".dockerignore").read_text(encoding="utf-8").split()
    assert sent == ["*", "!built/dist/*.whl"]


def test_only_the_release_may_write(root: Path) -> None:
    """Each right of the workflow belongs to one job that needs it, and the index knows the job by its environment."""
    workflow = yaml.safe_load((root / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))
    assert workflow["permissions"] == {}
    rights = {name: job["permissions"] for name, job in workflow["jobs"].items()}
    assert rights["build"] == {"contents": "read"}
    assert rights["publish"] == {"id-token": "write"}
    assert workflow["jobs"]["publish"]["environment"] == "pypi"
    assert all("secrets." not in json.dumps(job) for job in workflow["jobs"].values())


@pytest.mark.slow
@pytest.mark.network
def test_a_release_is_built(checkout: Path, tmp_path: Path) -> None:
    """Wheel, sdist, bill of materials, recipe, hooks, notes and sums of a tagged version, without the page."""
    out = tmp_path / "built"
    done = make(checkout, TAG, "--out", out, "--owner", "someone", "--without-page")
    if "No matching distribution" in done.stderr or "Could not find" in done.stderr:
        pytest.skip("the package index cannot be reached")
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (out / "dist").glob("*.whl")
    assert "memcheck/schemas/plan.schema.json" in zipfile.ZipFile(wheel).namelist()
    bill = json.loads((out / "bill-of-materials.cdx.json").read_text(encoding="utf-8"))
    names = {part["name"].lower() for part in bill["components"]}
    assert {"memcheck", "click", "jsonschema", "pydantic", "pyyaml", "tomlkit"} <= names
    recipe = (out / "conda-forge.yaml").read_text(encoding="utf-8")
    assert re.search(r'sha256: "[0-9a-f]{64}"', recipe)
    assert "https://github.com/someone/memcheck" in recipe
    assert f"memcheck=={memcheck.__version__}" in (out / "pre-commit-mirror" / "pyproject.toml").read_text()
    sums = (out / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    assert len(sums) == sum(1 for path in out.rglob("*") if path.is_file()) - 1
