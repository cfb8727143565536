"""What a clean check must not import. Weighed, not timed: `benchmarks/startup.py` takes the time, as a ratio."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {
    "argparse",
    "ast",
    "asyncio",
    "click",
    "concurrent",
    "dataclasses",
    "difflib",
    "email",
    "http",
    "importlib.metadata",
    "inspect",
    "jsonschema",
    "locale",
    "logging",
    "multiprocessing",
    "numpy",
    "pathlib",
    "random",
    "shutil",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
    "tomli",
    "tomlkit",
    "tomllib",
    "torch",
    "traceback",
    "transformers",
    "unittest",
    "urllib",
    "uuid",
}
"""Modules that cost more than what a clean check would gain from them."""

MOST_SOURCE_BYTES = 915_000
"""Source of the package that checking one plan may import, in files of any size: every start reads and runs it
from its compiled form. Comments and docstrings do not count, so that nobody saves at what explains the rest."""

MOST_KEEPING_BYTES = 21_300
"""Source that keeping the verdict may add to that."""

WATCHED = """\
import sys
from memcheck.__main__ import main
code = main(sys.argv[1:])
sys.stderr.write("\\0".join(sorted(sys.modules)))
sys.exit(code)
"""


def imported(root: Path, *arguments: str, expected: int = 0, **variables: str) -> set[str]:
    """The modules that one command line needs, in an interpreter of its own without the environment's additions."""
    environment = {**os.environ, "PYTHONPATH": str(root), **variables}
    bare = subprocess.run(
        [sys.executable, "-c", "import sys; print('\\0'.join(sys.modules), end='')"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    run = subprocess.run(
        [sys.executable, "-c", WATCHED, *arguments],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == expected, run.stderr
    return set(run.stderr.split("\0")) - set(bare.stdout.split("\0"))


@pytest.fixture(scope="module")
def clean(root: Path) -> set[str]:
    """What checking a plan that passes imports."""
    return imported(root, "check", "examples/llama-3.1-8b-fsdp-8xh100.yaml")


def test_a_clean_check_imports_nothing_heavy(clean: set[str]) -> None:
    """A plan that passes is judged without click, jsonschema, tomlkit and the heavy parts of the standard library."""
    assert "yaml" in clean
    assert {name for name in clean if name in HEAVY or name.partition(".")[0] in HEAVY} == set()


def test_a_clean_check_needs_no_patterns(clean: set[str]) -> None:
    """A plan that passes is judged without the pattern engine, and without what would bring it along."""
    assert clean & {"re", "enum", "json", "datetime", "yaml.reader", "yaml.constructor"} == set()


@pytest.mark.parametrize("name", ["llama-3.2-3b-full-rtx-4090", "llama-3.1-8b-long-context-8xh100"])
def test_a_search_for_remedies_needs_no_patterns(root: Path, name: str) -> None:
    """A plan that does not fit is judged without the pattern engine, and without rules that find nothing in it."""
    found = imported(root, "check", f"examples/{name}.yaml", expected=1)
    assert "memcheck.what_if.search.fit" in found
    assert found & {"re", "enum", "typing"} == set()
    unneeded = {"mem404_unknown_option", "mem409_contradicting_options"}
    assert found & {f"memcheck.rules.{each}" for each in unneeded} == set()


def test_a_clean_check_needs_little_of_python(clean: set[str]) -> None:
    """A plan that passes is judged without ``importlib``, which brings ``warnings`` along."""
    assert "memcheck.edge.imports" in clean
    assert clean & {"importlib", "warnings"} == set()


@pytest.mark.slow
def test_a_clean_check_imports_little_source(root: Path, clean: set[str]) -> None:
    """A plan that passes needs no more of the package than the budget allows, however it is cut into files."""
    assert "memcheck.memory.estimate" in clean
    assert source_bytes(root, clean) <= MOST_SOURCE_BYTES


def source_bytes(root: Path, names: set[str]) -> int:
    """The bytes of code of the package's modules among these."""
    mine = [root / name.replace(".", "/") for name in names if name.partition(".")[0] == "memcheck"]
    files = [each / "__init__.py" if each.is_dir() else each.with_suffix(".py") for each in mine]
    return sum(len(ast.unparse(without_docstrings(ast.parse(file.read_bytes())))) for file in files)


def without_docstrings(tree: ast.Module) -> ast.Module:
    """The module without the strings that are statements of their own."""
    for node in ast.walk(tree):
        for body in (getattr(node, "body", None), getattr(node, "orelse", None)):
            if isinstance(body, list):
                body[:] = [each for each in body if not is_string(each)] or [ast.Pass()]
    return tree


def is_string(node: ast.stmt) -> bool:
    """Whether a statement is nothing but a string."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@pytest.mark.slow
def test_keeping_a_verdict_costs_little_and_finding_it_saves_the_engine(
    root: Path, clean: set[str], tmp_path: Path
) -> None:
    """The first run brings a few small modules more; the second neither the engine, nor rules, nor YAML."""
    line = ("check", "examples/llama-3.1-8b-fsdp-8xh100.yaml")
    first, second = (imported(root, *line, MEMCHECK_NO_CACHE="", XDG_CACHE_HOME=str(tmp_path)) for _ in range(2))
    assert {name for name in first if name in HEAVY or name.partition(".")[0] in HEAVY} == set()
    assert 0 < source_bytes(root, first - clean) <= MOST_KEEPING_BYTES
    unneeded = ("memcheck.memory", "memcheck.frameworks", "memcheck.rules.run", "memcheck.plan.read", "yaml")
    assert {name for name in second if name.startswith(unneeded)} <= {"memcheck.memory", "memcheck.memory.fit"}
    assert source_bytes(root, second) < source_bytes(root, clean) / 3


def test_a_clean_check_leaves_the_rest_of_the_package_alone(root: Path, clean: set[str]) -> None:
    """Remedies, explanations, rules about what the plan does not say, other frameworks, formats and commands."""
    unneeded = (
        "memcheck.cli.app",
        "memcheck.config.read",
        "memcheck.frameworks.megatron.stages",
        "memcheck.frameworks.torch.ddp",
        "memcheck.frameworks.deepspeed",
        "memcheck.frameworks.torch.inventory",
        "memcheck.frameworks.transformers.moe",
        "memcheck.frameworks.torchtitan",
        "memcheck.frameworks.megatron",
        "memcheck.frameworks.transformers.forward_only_pass",
        "memcheck.autograd.quantised",
        "memcheck.plan.explain",
        "memcheck.what_if.remedies",
        "memcheck.report.text_blocks",
        "memcheck.report.json",
        "memcheck.report.markdown",
        "memcheck.cli.job",
        "memcheck.rules.mem413_no_such_module",
        "memcheck.rules.mem416_setting_without_effect",
        "memcheck.rules.mem417_unsupported_objective",
        "memcheck.rules.mem605_too_many_gpu_hours",
        "memcheck.rules.registry",
        "memcheck.rules.settling",
        "memcheck.plan.syntax",
        "memcheck.verify",
    )
    paths = [root / name.replace(".", "/") for name in unneeded]
    assert [path for path in paths if not path.is_dir() and not path.with_suffix(".py").is_file()] == []
    assert {name for name in clean if name.startswith(unneeded)} == set()


@pytest.mark.parametrize("format", ["concise", "json", "github", "markdown"])
def test_a_machine_readable_report_imports_nothing_heavy(root: Path, format: str) -> None:
    """Other formats than the default one cost a module or two, no library."""
    found = imported(root, "check", "--format", format, "examples/llama-3.1-8b-fsdp-8xh100.yaml")
    assert {name for name in found if name in HEAVY or name.partition(".")[0] in HEAVY} == set()


def test_json_is_written_without_its_library(root: Path) -> None:
    """``--format json`` brings neither ``json`` nor the pattern engine along."""
    found = imported(root, "check", "--format", "json", "examples/llama-3.1-8b-fsdp-8xh100.yaml")
    assert "memcheck.report.json" in found
    assert found & {"json", "re"} == set()


def test_the_version_imports_nothing(root: Path) -> None:
    """``--version`` needs no more than the entry point."""
    found = imported(root, "--version")
    assert {name for name in found if name.startswith("memcheck")} == {"memcheck", "memcheck.__main__"}
    assert not found & {"click", "yaml", "typing", "re"}


def test_the_help_imports_no_command(root: Path) -> None:
    """``--help`` needs click, and neither YAML nor anything that judges plans."""
    found = imported(root, "--help")
    assert "click" in found
    assert not found & {"yaml", "jsonschema", "memcheck.judge", "memcheck.plan.types"}


def test_a_failing_plan_may_import_more(root: Path, tmp_path: Path) -> None:
    """The list of what is heavy is not idle: explaining a plan that does not conform imports from it."""
    plan = tmp_path / "plan.yaml"
    plan.write_text("memcheck: 1\nmodle: llama-3.1-8b\n", encoding="utf-8")
    found = imported(root, "check", "--format", "json", str(plan), expected=1)
    assert found & HEAVY
