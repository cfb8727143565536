"""What a framework does stands in its folder: elsewhere nothing is decided by a framework's name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import memcheck
from memcheck.frameworks.registry import FOLDERS, FRAMEWORKS
from tests.sources import trees

ROOT = Path(memcheck.__file__).parent
OWN = set(FOLDERS.values()) - {"torch", "transformers"}
"""Folders of one framework each. Those of torch and transformers have code that others run."""
FORMAT = "the name of a config's format, which is read and written whatever framework a plan has"
WRITER = "a config's writer leaves out what goes without saying in the framework of its format"
REGISTRY = "the registry"
PACKAGE = "the name of a package that is imported"
ALLOWED = {
    "frameworks/registry.py": REGISTRY,
    "cli/export.py": FORMAT,
    "cli/run.py": "programs that start a script, under their own names",
    "cli/options.py": "programs that start a script, under their own names",
    "cli/submit.py": "programs that start a script, under their own names",
    "live/asked.py": FORMAT,
    "live/requests.py": FORMAT,
    "configs/config_words.py": FORMAT,
    "configs/edits.py": FORMAT,
    "configs/formats.py": FORMAT,
    "configs/key_index.py": FORMAT,
    "configs/python_launches.py": "programs that start a script, under their own names",
    "configs/python_run.py": PACKAGE,
    "configs/python_source.py": PACKAGE,
    "configs/python_started.py": "arguments of a trainer, under their own names",
    "configs/recipe_launch.py": FORMAT,
    "configs/answers.py": FORMAT,
    "configs/sourced_edits.py": FORMAT,
    "configs/write_deepspeed.py": WRITER,
    "configs/write_megatron.py": WRITER,
    "configs/write_torchtitan.py": WRITER,
    "guard/live_job.py": "arguments and packages of a running job, under their own names",
    "verify/observe.py": PACKAGE,
}


def decisions(tree: ast.Module) -> Iterator[int]:
    """Lines that compare a framework's name, match it, look it up, or list it for others to do so."""
    constants = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and _names(node.value)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        parts: list[ast.expr | None] = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
            if any(isinstance(part, ast.Name) and part.id in constants for part in parts):
                yield node.lineno
        elif isinstance(node, ast.Dict):
            parts = [*node.keys]
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            parts = [*node.elts]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        elif isinstance(node, ast.Subscript):
            parts = [node.slice]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            parts = [*node.args] if node.func.attr in ("get", "startswith", "endswith", "__eq__") else []
        if any(_names(part) for part in parts):
            yield node.lineno


def _names(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in FRAMEWORKS


@cache
def found() -> dict[str, list[int]]:
    """Lines by file, outside the folders of one framework each."""
    lines = {}
    for path, tree in trees(ROOT, FRAMEWORKS):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(tuple(f"frameworks/{folder}/" for folder in OWN)):
            lines[name] = sorted(set(decisions(tree)))
    return {name: where for name, where in lines.items() if where}


@pytest.mark.parametrize(
    "line",
    [
        'x = job.framework == "megatron"',
        'x = "pytorch" != name',
        'x = name in ("huggingface", "pytorch")',
        'STYLES = {"megatron": 1}',
        'PLAIN = frozenset({"litgpt", "torchtune"})',
        'OWNER = "megatron"\nx = framework == OWNER',
        'x = FRAMEWORKS["deepspeed"]',
        'x = kinds.get("torchtitan")',
        'match name:\n    case "torchtitan":\n        pass',
        'match name:\n    case "torchtitan" | "other":\n        pass',
    ],
)
def test_every_way_to_decide_by_a_name_is_seen(line: str) -> None:
    """Comparisons, membership, keys, lookups, matches, and constants that stand for a name."""
    assert list(decisions(ast.parse(line)))


@pytest.mark.parametrize("line", ["x = job.framework == other", 'draft("megatron")', 'x = name == "megatron-lm"'])
def test_what_decides_nothing_is_left_alone(line: str) -> None:
    """A framework's name may be said, and other words may be compared."""
    assert not list(decisions(ast.parse(line)))


@pytest.mark.slow
def test_no_name_decides_outside_the_frameworks_folders() -> None:
    """What stacks do differently is a fact of their profile or timing, which the rest of the code asks for."""
    assert {name: lines for name, lines in found().items() if name not in ALLOWED} == {}


@pytest.mark.slow
def test_every_exception_is_still_needed() -> None:
    """A file that decides by no name any more is no exception."""
    assert set(ALLOWED) <= set(found())
