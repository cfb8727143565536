"""Mutation score of the rules and the engine: how many small changes of the code some test notices, by folder.

    pip install cosmic-ray coverage
    python -m benchmarks.mutants [--sample N] [--seed S] [--first N] [--lines FOLDER] [--write] [FOLDER ...]

Cosmic Ray's operators say what can be changed in a module; a seeded sample of that is made, one change at a time, in a
copy of this checkout. Of the plans of ``benchmarks.figures`` those that run the changed line are asked first, then the
files of the folder's tests that run it, until the first fails. A change that nothing notices is printed as a diff: it
is a missing test, or it is the same program. One under which the tests do not end in time is undecided: it is an
endless loop, or a busy machine.
``--write`` puts the table and the survivors into ``benchmarks/MUTANTS.md``.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from difflib import unified_diff
from itertools import chain, count, islice, zip_longest
from pathlib import Path

from benchmarks.covering import DATA, PLAN, Lines, record, test_files
from memcheck.record import Record

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "benchmarks" / "MUTANTS.md"
COPIED = ("memcheck", "tests", "schemas", "examples", "benchmarks", "docs", "action")
"""What the tests of the engine look at, besides the files of the top."""

OPERATORS = (
    "AddNot",
    "NumberReplacer",
    "ReplaceAndWithOr",
    "ReplaceBinaryOperator_Add_Sub",
    "ReplaceBinaryOperator_Div_Mul",
    "ReplaceBinaryOperator_FloorDiv_Mul",
    "ReplaceBinaryOperator_Mod_FloorDiv",
    "ReplaceBinaryOperator_Mul_Add",
    "ReplaceBinaryOperator_Sub_Add",
    "ReplaceComparisonOperator_Eq_NotEq",
    "ReplaceComparisonOperator_GtE_Gt",
    "ReplaceComparisonOperator_Gt_GtE",
    "ReplaceComparisonOperator_IsNot_Is",
    "ReplaceComparisonOperator_Is_IsNot",
    "ReplaceComparisonOperator_LtE_Lt",
    "ReplaceComparisonOperator_Lt_LtE",
    "ReplaceComparisonOperator_NotEq_Eq",
    "ReplaceFalseWithTrue",
    "ReplaceOrWithAnd",
    "ReplaceTrueWithFalse",
    "ReplaceUnaryOperator_Delete_Not",
    "ReplaceUnaryOperator_USub_UAdd",
    "ZeroIterationForLoop",
)
"""Each kind of change once: what replaces ``+`` by ``-`` and is noticed says what replacing it by ``*`` would say."""

SHARED = ("tests/report/test_golden.py", "tests/examples", "tests/memory")
"""Whole verdicts: what any folder of the engine bears on."""
FOLDERS: dict[str, tuple[str, ...]] = {
    "memcheck/rules": ("tests/rules", "tests/report/test_golden.py", "tests/config/test_governance.py"),
    "memcheck/memory": ("tests/memory", "tests/report/test_golden.py", "tests/examples"),
    "memcheck/accounts": ("tests/accounts", *SHARED, "tests/frameworks"),
    "memcheck/frameworks/torch": ("tests/frameworks/torch", *SHARED, "tests/frameworks"),
    "memcheck/frameworks/transformers": ("tests/frameworks/transformers", *SHARED, "tests/frameworks"),
    "memcheck/frameworks/deepspeed": ("tests/frameworks/deepspeed", *SHARED, "tests/frameworks"),
    "memcheck/frameworks/megatron": ("tests/frameworks/megatron", *SHARED),
    "memcheck/frameworks/torchtitan": (*SHARED, "tests/frameworks"),
    "memcheck/frameworks/torchtune": ("tests/frameworks/torchtune", *SHARED, "tests/frameworks"),
    "memcheck/frameworks/litgpt": ("tests/frameworks/litgpt", *SHARED, "tests/frameworks"),
}
"""The folders whose changes are made, each with the quick tests that look at it, the nearest first."""
QUICK = "not slow and not torch"
"""Marks of the tests that are asked."""
LONGEST_S = 240
"""Seconds of one run of tests."""
UNDECIDED = "time"
PASSED = (0, 5)
"""Exit codes of pytest without a failure: all passed, and none was selected."""


class Change(Record):
    """One thing that can be changed."""

    path: str
    operator: str
    occurrence: int
    """The how many-th place of the module, from 0, that the operator can change."""


class Judged(Record):
    """A change that was made."""

    change: Change
    folder: str
    diff: str
    killed_by: str
    """The first test that failed; empty for a survivor."""


def changes(folder: str) -> list[Change]:
    """Everything in a folder and below that the operators can change, in the order of paths."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator

    operators = [(name, get_operator(f"core/{name}")()) for name in OPERATORS]
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        nodes = list(ast_nodes(get_ast(path.read_text(encoding="utf-8"))))
        shown = path.relative_to(ROOT).as_posix()
        for name, operator in operators:
            places = sum(sum(1 for _ in operator.mutation_positions(node)) for node in nodes)
            found += [Change(shown, name, occurrence) for occurrence in range(places)]
    return found


def sample(folders: list[str], most: int, seed: int) -> Iterator[tuple[str, Change]]:
    """As many changes of each folder, in turn, drawn without regard to anything but the seed."""
    drawn = {}
    for folder in folders:
        possible = changes(folder)
        share = min(-(-most // len(folders)), len(possible))
        drawn[folder] = random.Random(f"{seed} {folder}").sample(possible, share)  # noqa: S311
    rows = zip_longest(*drawn.values())
    turns = [(folder, change) for row in rows for folder, change in zip(drawn, row, strict=True) if change is not None]
    yield from turns[:most]


def mutated(change: Change) -> str:
    """The module's text with the change."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    text = (ROOT / change.path).read_text(encoding="utf-8")
    after = mutate_code(text, get_operator(f"core/{change.operator}")(), change.occurrence)
    if after is None:
        raise ValueError(f"{change} changes nothing")
    return str(after)


def judge(folder: str, change: Change, copy: Path, ran: Lines) -> Judged:
    """Make one change in the copy, ask what looks at it, and take it back."""
    before, after = (ROOT / change.path).read_text(encoding="utf-8"), mutated(change)
    lines = [text.splitlines(keepends=True) for text in (before, after)]
    diff = "".join(unified_diff(*lines, change.path, change.path, n=0))
    line = next(n for n, (old, new) in enumerate(zip_longest(*lines), 1) if old != new)
    looking = ran.running(change.path, line)
    file = copy / change.path
    put(file, after)
    try:
        killer = moved_plan(copy, looking)
        killer = killer or first_failure(copy, [file for file in test_files(ROOT, FOLDERS[folder]) if file in looking])
    finally:
        put(file, before)
    return Judged(change, folder, diff, killer)


def moved_plan(copy: Path, looking: set[str]) -> str:
    """The first of the plans that run a line of which a figure moved; all are asked where it ran for none alone."""
    if PLAN not in looking and not any(name.startswith(PLAN) for name in looking):
        return ""
    plans = sorted((name.removeprefix(PLAN).strip() for name in looking if name.startswith(f"{PLAN} ")), key=_number)
    done = run(copy, ["benchmarks.figures", "--check", "--first", *plans])
    return done if isinstance(done, str) else f"{PLAN} {done.stdout.partition(':')[0]}" if done.returncode else ""


def _number(name: str) -> tuple[bool, int]:
    """Plans first, in their order."""
    return not name.isdigit(), int(name) if name.isdigit() else 0


_dates = count(2_000_000_000, 2)


def put(file: Path, text: str) -> None:
    """Write a module under a date that it never had, so that no bytecode of another text is taken for its own."""
    file.write_text(text, encoding="utf-8")
    date = next(_dates)
    os.utime(file, (date, date))


def first_failure(copy: Path, tests: list[str]) -> str:
    """What the tests end with: the first that fails, ``time`` or ``import``; empty where all pass or there are none."""
    if not tests:
        return ""
    done = run(copy, ["pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-m", QUICK, *tests])
    if isinstance(done, str) or done.returncode in PASSED:
        return done if isinstance(done, str) else ""
    failed = [each for each in done.stdout.splitlines() if each.startswith(("FAILED ", "ERROR "))]
    return failed[0].split()[1] if failed else "import"


def run(copy: Path, module: list[str]) -> subprocess.CompletedProcess[str] | str:
    """A module with its arguments, run on the copy; ``time`` where it does not end."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(copy), os.environ.get("PYTHONPATH", "")])}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # what did not change is compiled once
    line = [sys.executable, "-m", *module]
    try:
        return subprocess.run(
            line, cwd=copy, env=environment, capture_output=True, text=True, timeout=LONGEST_S, check=False
        )
    except subprocess.TimeoutExpired:
        return UNDECIDED


def copied(folder: Path) -> Path:
    """A copy of what the tests need, so that no change ever stands in this checkout, and which tests run which line.

    One that is there already is taken as it is where it has the same program.
    """
    program = [file.relative_to(ROOT) for file in (ROOT / "memcheck").rglob("*.py")]
    if (folder / DATA).exists() and all((folder / at).read_bytes() == (ROOT / at).read_bytes() for at in program):
        return folder
    for name in COPIED:
        shutil.rmtree(folder / name, ignore_errors=True)
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
    for file in ROOT.iterdir():
        if file.is_file() and file.name != ".git":  # of a worktree, which tests would take for the copy's own
            shutil.copy(file, folder)
    (folder / DATA).unlink(missing_ok=True)
    record(folder, test_files(folder, tuple(chain.from_iterable(FOLDERS.values()))), QUICK)
    done = run(folder, ["benchmarks.covering"])
    if isinstance(done, str) or done.returncode:
        (folder / DATA).unlink()  # without its plans it would be taken as it is next time
        raise RuntimeError("the plans of benchmarks.figures were not recorded")
    return folder


def table(judged: list[Judged]) -> str:
    """The score of every folder, in Markdown, and how many the plans of ``benchmarks.figures`` notice by themselves."""
    rows = [
        "| folder | decided | noticed | score | 95 % interval | by the figures | undecided |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name in [*dict.fromkeys(each.folder for each in judged), "all"]:
        mine = [each for each in judged if name in ("all", each.folder)]
        decided = [each for each in mine if each.killed_by != UNDECIDED]
        killed = sum(bool(each.killed_by) for each in decided)
        score = f"{killed / len(decided):.0%} | {interval(killed, len(decided))}" if decided else "|"
        plans = sum(each.killed_by.startswith(PLAN) for each in decided)
        rows.append(f"| {name} | {len(decided)} | {killed} | {score} | {plans} | {len(mine) - len(decided)} |")
    return "\n".join(rows)


def interval(killed: int, decided: int) -> str:
    """Between which shares all changes lie of which a sample was drawn (Wilson's score interval, 95 %)."""
    share, per = killed / decided, 1.96**2 / decided
    middle, half = share + per / 2, (per * share * (1 - share) + per**2 / 4) ** 0.5
    return f"{(middle - half) / (1 + per):.0%} to {(middle + half) / (1 + per):.0%}"


def page(judged: list[Judged], arguments: str) -> str:
    """The table and every survivor."""
    survivors = "\n".join(each.diff for each in judged if not each.killed_by)
    return (
        f"# Changes that tests notice\n\nWritten by `python -m benchmarks.mutants {arguments}`.\n\n{table(judged)}\n\n"
        f"Not noticed:\n\n```diff\n{survivors}```\n"
    )


def main() -> int:
    """Judge a sample, and print each survivor as it is found and the table at the end."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help=f"of {', '.join(FOLDERS)}")
    parser.add_argument("--sample", type=int, default=150, help="changes in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, help="judge only so many of them")
    parser.add_argument("--lines", type=Path, metavar="FOLDER", help="keep the copy and what its tests run there")
    parser.add_argument("--write", action="store_true", help="write benchmarks/MUTANTS.md")
    options = parser.parse_args()
    judged = []
    with tempfile.TemporaryDirectory() as folder:
        copy = copied((options.lines or Path(folder)).resolve())
        ran = Lines(copy)
        drawn = sample(options.folders or list(FOLDERS), options.sample, options.seed)
        for where, change in islice(drawn, options.first):
            judged.append(judge(where, change, copy, ran))
            last = judged[-1]
            print(f"{last.killed_by or 'SURVIVED'}  {change.path} {change.operator} {change.occurrence}", flush=True)
            if not last.killed_by:
                print(last.diff, flush=True)
    print(table(judged))
    if options.write:
        PAGE.write_text(page(judged, " ".join(sys.argv[1:])), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
