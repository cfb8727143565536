"""What is installed: metadata, data files, and a command that needs neither network nor heavy libraries."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import memcheck

PLAN = "llama-3.1-8b-fsdp-8xh100.yaml"

# Runs the command in a fresh interpreter that stops at the first use of a socket, then prints the loaded modules.
WITHOUT_NETWORK = """
import sys

def refuse(event, arguments):
    if event.startswith("socket."):
        raise SystemExit(f"network use: {event} {arguments}")

sys.addaudithook(refuse)
from memcheck.__main__ import main
code = main(sys.argv[1:])
print("modules:", *sorted(sys.modules), file=sys.stderr)
raise SystemExit(code)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["check", PLAN],
        ["estimate", PLAN],
        ["check", PLAN, "--format", "html"],
        ["list", "models"],
        ["diff", PLAN, PLAN],
    ],
    ids=" ".join,
)
def test_commands_open_no_socket(root: Path, arguments: list[str]) -> None:
    """No command touches the network: an interpreter in which sockets are forbidden runs it just the same."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_NETWORK, *arguments],
        cwd=root / "examples",
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    loaded = set(done.stderr.partition("modules:")[2].split())
    assert "yaml" in loaded or arguments[0] == "list"
    assert loaded.isdisjoint({"socket", "ssl", "urllib.request", "http.client"})


def test_version_is_a_literal(root: Path) -> None:
    """The version is a literal in the package, and the installed metadata carries the same one."""
    tree = ast.parse((root / "memcheck" / "__init__.py").read_text(encoding="utf-8"))
    assigned = {
        node.targets[0].id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    assert assigned["__version__"] == memcheck.__version__ == importlib.metadata.version("memcheck")


def test_changelog_knows_the_version(root: Path) -> None:
    """The changelog has a section for unreleased changes or for the version at hand."""
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \[(Unreleased|{re.escape(memcheck.__version__)})\]", changelog, flags=re.MULTILINE)


def test_runtime_dependencies_are_the_agreed_ones() -> None:
    """Installing the gate installs six libraries, and PyTorch or ReportLab only on request."""
    requirements = importlib.metadata.requires("memcheck") or []
    plain = {re.split(r"[^\w-]", line)[0].lower() for line in requirements if "extra ==" not in line}
    assert plain == {"click", "jsonschema", "pydantic", "pyyaml", "tomli", "tomlkit"}
    for extra, libraries in {"verify": {"peft", "torch", "transformers"}, "pdf": {"reportlab"}}.items():
        named = [line for line in requirements if f"extra == '{extra}'" in line.replace('"', "'")]
        assert {re.split(r"[^\w-]", line)[0].lower() for line in named} == libraries


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.usefixtures("package_index")
def test_wheel_carries_schemas_and_data(root: Path, tmp_path: Path) -> None:
    """The wheel holds the schemas, every data file of the package, the licence and the type marker."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(root)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("memcheck-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    package = {
        path.relative_to(root).as_posix()
        for path in (root / "memcheck").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    schemas = {f"memcheck/schemas/{path.name}" for path in (root / "schemas").glob("*.json")}
    assert schemas >= {"memcheck/schemas/plan.schema.json", "memcheck/schemas/report.schema.json"}
    assert names >= package | schemas
    assert any(name.endswith("licenses/LICENSE") for name in names)
