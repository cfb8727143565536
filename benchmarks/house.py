"""How easily the code can be taken over: sizes, circles of imports, fields of shared records, as one table.

    python -m benchmarks.house [--write]

``--write`` records the table in ``benchmarks/house.md``. A row says what is counted, the count, and the aim.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "memcheck"
TABLE = ROOT / "benchmarks" / "house.md"
PLAN = "examples/llama-3.1-8b-fsdp-8xh100.yaml"
OWN_WORDS = re.compile(r"\b(behind|beside|so many|rests|nobody)\b")
"""Words that a reader of the field's papers and libraries does not expect."""
COUNT = """
import sys
calls, depth, deepest = set(), 0, 0
def imports(code):
    return code.co_name == "<module>" or code.co_filename.startswith("<frozen") or "/edge/imports" in code.co_filename
def seen(frame, event, argument):
    global depth, deepest
    if event == "call" and "/memcheck/" in frame.f_code.co_filename:
        calls.add(frame.f_code)
    if event in ("call", "return") and not imports(frame.f_code):
        depth += 1 if event == "call" else -1
        deepest = max(deepest, depth)
from memcheck.__main__ import main
sys.setprofile(seen)
main(["check", "--no-cache", "--quiet", sys.argv[1]])
sys.setprofile(None)
print(len([name for name in sys.modules if name.startswith("memcheck")]), len(calls), deepest)
"""
"""A check that counts. Imports are no part of its depth: that differs with the bytecode that is on the disk."""


class Row(NamedTuple):
    """One measure: what is counted, the count, and the number that it should not exceed."""

    what: str
    value: int
    aim: int


def texts_of_modules() -> dict[str, str]:
    """The text of every module of the package, by its full name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        found[name] = path.read_text(encoding="utf-8")
    return found


def imports(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """The modules that each module imports, also inside functions; imports for a type checker alone do not count."""
    found: dict[str, set[str]] = {}
    for name, tree in trees.items():
        found[name] = set()
        for node in statements(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                named = {f"{node.module}.{alias.name}" for alias in node.names}
                found[name] |= (named & trees.keys()) or ({node.module} & trees.keys())
        found[name].discard(name)
    return found


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Every statement inside of one, handlers and cases among them, but for those under ``if TYPE_CHECKING``."""
    typed = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    for part in ("body", "handlers", "orelse", "finalbody", "cases"):
        for each in () if typed and part == "body" else getattr(node, part, ()):
            yield each
            yield from statements(each)


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that all reach one another, the largest first (Tarjan's algorithm, without recursion)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []
    for start in list(edges):
        if start in order:
            continue
        order[start] = low[start] = len(order)
        stack.append(start)
        pending = [(start, iter(sorted(edges[start])))]
        while pending:
            node, rest = pending[-1]
            following = next(rest, None)
            if following is None:
                pending.pop()
                if pending:
                    low[pending[-1][0]] = min(low[pending[-1][0]], low[node])
                if low[node] == order[node]:
                    cut = stack.index(node)
                    found.append(sorted(stack[cut:]))
                    del stack[cut:]
            elif following not in order:
                order[following] = low[following] = len(order)
                stack.append(following)
                pending.append((following, iter(sorted(edges[following]))))
            elif following in stack:
                low[node] = min(low[node], order[following])
    return sorted((each for each in found if len(each) > 1), key=len, reverse=True)


def optional_fields(trees: dict[str, ast.Module]) -> list[str]:
    """The fields with a default of the records that all models share."""
    found = []
    for name, tree in trees.items():
        if re.fullmatch(r"memcheck\.models\.\w*types\w*", name):
            for kind in (node for node in tree.body if isinstance(node, ast.ClassDef)):
                fields = [node for node in kind.body if isinstance(node, ast.AnnAssign) and node.value is not None]
                found += [node.target.id for node in fields if isinstance(node.target, ast.Name)]
    return found


def setters(field: str, texts: dict[str, str]) -> int:
    """The number of files of models that give a field a value."""
    return sum(bool(re.search(rf"\b{field}=", text)) for text in texts.values())


def fields_of(kind: str, trees: dict[str, ast.Module]) -> int:
    """The number of fields of a record."""
    return sum(
        isinstance(node, ast.AnnAssign)
        for tree in trees.values()
        for each in tree.body
        if isinstance(each, ast.ClassDef) and each.name == kind
        for node in each.body
    )


def inner_imports(trees: dict[str, ast.Module]) -> int:
    """The number of the package's own imports inside functions."""
    found = set()
    for name, tree in trees.items():
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            for node in ast.walk(function):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("memcheck"):
                    found.add((name, node.lineno))
    return len(found)


def one_check() -> tuple[int, int, int]:
    """Modules loaded by one check, functions called, and the depth of the deepest call."""
    done = subprocess.run([sys.executable, "-c", COUNT, PLAN], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded, called, deepest = (int(word) for word in done.stdout.split()[-3:])
    return loaded, called, deepest


def rows() -> list[Row]:
    """Every measure."""
    texts = texts_of_modules()
    trees = {name: ast.parse(text) for name, text in texts.items()}
    models = {name: text for name, text in texts.items() if name.startswith(("memcheck.models", "memcheck.families"))}
    fields = optional_fields(trees)
    classes = Counter(node.name for tree in trees.values() for node in tree.body if isinstance(node, ast.ClassDef))
    groups = circles(imports(trees))
    loaded, called, deepest = one_check()
    return [
        Row(
            "rooms: folders and modules right below the package",
            len({name.split(".")[1] for name in list(trees)[1:]}),
            26,
        ),
        Row("files of the largest circle of imports", len(groups[0]) if groups else 1, 3),
        Row("class names that two files define", sum(n > 1 for name, n in classes.items() if name[0] != "_"), 3),
        Row("optional fields of shared model records", len(fields), 90),
        Row(
            "of these, fields that at most one file of models sets",
            sum(setters(each, models) <= 1 for each in fields),
            0,
        ),
        Row("fields of Profile", fields_of("Profile", trees), 40),
        Row("imports of our own inside functions", inner_imports(trees), 200),
        Row("modules that one cold check loads", loaded, 120),
        Row("functions that one check calls", called, 1319),
        Row("depth of its deepest call", deepest, 66),
        Row(
            "words of our own (behind, beside, so many, rests, nobody)",
            sum(len(OWN_WORDS.findall(t)) for t in texts.values()),
            250,
        ),
        Row("files", len(trees), 700),
        Row("lines", sum(len(text.splitlines()) for text in texts.values()), 105_000),
    ]


def table(found: list[Row]) -> str:
    """The measures as Markdown."""
    lines = ["| measure | count | aim |", "|---|---:|---:|"]
    return "\n".join([*lines, *(f"| {row.what} | {row.value:,} | {row.aim:,} |" for row in found)]) + "\n"


def main() -> int:
    """Print the table, and write it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="record the table in benchmarks/house.md")
    text = table(rows())
    if parser.parse_args().write:
        head = (
            "# Shape of the code\n\nWritten by `python -m benchmarks.house --write`. "
            "It is a record; `tests/test_house.py` holds what may not grow.\n\n"
        )
        TABLE.write_text(head + text, encoding="utf-8", newline="\n")
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
