"""Build what a release consists of, from a clean checkout: ``python release/make.py v1.2.3 --out FOLDER``.

FOLDER then holds ``dist/`` (wheel with the page inside, sdist), ``bill-of-materials.cdx.json`` (CycloneDX, of the
wheel and of all that it needs), ``conda-forge.yaml``, ``pre-commit-mirror/``, ``notes.md`` and ``SHA256SUMS``.
Nothing is published. Needs Python 3.11 or newer, the package index and, for the page, Node.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OWNER = "OWNER"
"""Whose repository it is, wherever a page, the recipe or the mirror names it. ``--owner`` fills it in."""


class ReleaseError(Exception):
    """What keeps a release from being built, and what to do."""


def main(arguments: list[str]) -> int:
    """Build everything; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tag", help="the tag, `v` and the version")
    parser.add_argument("--out", type=Path, required=True, help="a folder that is not there yet")
    parser.add_argument("--owner", default=OWNER, help="the account that holds the repository")
    parser.add_argument("--without-page", action="store_true", help="build the wheel without Node and without the page")
    options = parser.parse_args(arguments)
    try:
        build(options.tag, options.out, owner=options.owner, with_page=not options.without_page)
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 2
    return 0


def build(tag: str, out: Path, *, owner: str, with_page: bool) -> None:
    """Build every file of a release into ``out``."""
    version = tagged_version(tag)
    notes = release_notes(version)
    if out.exists():
        raise ReleaseError(f"{out} is already there: name a new folder")
    dist = out / "dist"
    dist.mkdir(parents=True)
    if with_page:
        run("npm", "ci", "--prefix", "site", "--no-audit", "--no-fund")
        run("npm", "run", "--prefix", "site", "release")
    with tempfile.TemporaryDirectory() as folder:
        tools = environment(Path(folder) / "tools", "build>=1.2", "cyclonedx-bom>=7.0", "hatchling>=1.26")
        run(tools / "python", "-m", "build", "--no-isolation", "--outdir", dist, ROOT)
        (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
        installed = environment(Path(folder) / "installed", wheel)
        bill = ["environment", installed / "python", "--of", "JSON", "--output-reproducible"]
        run(tools / "cyclonedx-py", *bill, "-o", out / "bill-of-materials.cdx.json")
    recipe = (ROOT / "release" / "conda-forge" / "recipe.yaml").read_text(encoding="utf-8")
    filled = fill(recipe, version=version, sha256=digest(sdist), owner=owner)
    (out / "conda-forge.yaml").write_text(filled, encoding="utf-8")
    mirror(out / "pre-commit-mirror", version)
    (out / "notes.md").write_text(notes, encoding="utf-8")
    files = sorted(path for path in out.rglob("*") if path.is_file())
    sums = "".join(f"{digest(path)}  {path.relative_to(out).as_posix()}\n" for path in files)
    (out / "SHA256SUMS").write_text(sums, encoding="utf-8")


def tagged_version(tag: str) -> str:
    """The version of a tag, which has to be the package's own."""
    source = (ROOT / "memcheck" / "__init__.py").read_text(encoding="utf-8")
    own = re.findall(r'^__version__ = "(.+)"$', source, flags=re.MULTILINE)[0]
    if tag != f"v{own}":
        raise ReleaseError(f"the tag is {tag}, and memcheck/__init__.py says {own}: tag v{own}, or raise the version")
    return own


def release_notes(version: str) -> str:
    """The changelog's section of a version."""
    parts = re.split(r"^## \[(.+?)\].*$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    if version not in sections:
        raise ReleaseError(f"CHANGELOG.md has no section `## [{version}]`: rename `[Unreleased]`")
    return sections[version].strip() + "\n"


def fill(template: str, *, version: str, sha256: str, owner: str) -> str:
    """The conda-forge recipe with its three placeholders filled in."""
    return template.replace("{version}", version).replace("{sha256}", sha256).replace("{owner}", owner)


def mirror(folder: Path, version: str) -> None:
    """Write the files of a repository that holds the pre-commit hooks alone.

    pre-commit then installs the published wheel in place of a clone of this repository.
    """
    folder.mkdir()
    shutil.copy(ROOT / ".pre-commit-hooks.yaml", folder)
    shutil.copy(ROOT / "LICENSE", folder)
    project = (
        f'[project]\nname = "memcheck-pre-commit"\nversion = "{version}"\ndependencies = ["memcheck=={version}"]\n'
    )
    (folder / "pyproject.toml").write_text(f"{project}\n[tool.setuptools]\npy-modules = []\n", encoding="utf-8")


def environment(folder: Path, *requirements: str | Path) -> Path:
    """Make a virtual environment with these packages; returns the folder of its programs."""
    venv.create(folder, with_pip=True)
    programs = folder / ("Scripts" if sys.platform == "win32" else "bin")
    run(
        programs / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-compile",
        "--disable-pip-version-check",
        *requirements,
    )
    return programs


def run(*command: str | Path) -> None:
    """Run a program in the checkout; a failure ends the release."""
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        raise ReleaseError(f"`{' '.join(map(str, command))}` failed")


def digest(path: Path) -> str:
    """The SHA-256 of a file, as 64 hexadecimal digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
