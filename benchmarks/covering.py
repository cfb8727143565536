"""Which files of tests run a line of the program: what has to be asked whether a change of that line is noticed.

Each file runs in a process of its own, as a process remembers what it priced: a test that comes after another one of
the same plan would not be seen to run the engine. A line that only runs at import belongs to all files that import it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

DATA = "lines.coverage"
"""What is kept in the folder of a copy."""
PLAN = "plan"
"""The word in front of a plan's number."""
CONFIGURATION = "[run]\ndata_file = {data}\nsource = memcheck\n"


def test_files(root: Path, folders: tuple[str, ...]) -> list[str]:
    """All files of tests of these folders, in this order, each once."""
    found: dict[str, None] = {}
    for name in folders:
        at = root / name
        files = [at] if at.is_file() else sorted(at.rglob("test_*.py"))
        found.update(dict.fromkeys(file.relative_to(root).as_posix() for file in files))
    return list(found)


def record(copy: Path, files: list[str], marked: str) -> None:
    """Run each file's tests with these marks under coverage.py, with its name as the context of every line they run.

    What a file's tests end with does not matter here: the lines until then count.
    """
    subprocess.run([sys.executable, "-c", "import pytest, xdist"], check=True)  # else no line has a test
    settings = copy / "coverage.ini"
    settings.write_text(CONFIGURATION.format(data=copy / DATA), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(copy), os.environ.get("PYTHONPATH", "")])}
    for file in files:
        line = [sys.executable, "-m", "coverage", "run", "--append", f"--rcfile={settings}", f"--context={file}"]
        tests = ["-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", marked, file]
        subprocess.run([*line, *tests], cwd=copy, env=environment, capture_output=True, check=False)


def record_plans(copy: Path) -> None:
    """Run the plans of ``benchmarks.figures`` and what is kept besides, each as a context of its own; first all as one.

    What runs at import, or once for all plans, is then known to run, and by no plan in particular.
    """
    from coverage import Coverage

    watching = Coverage(data_file=str(copy / DATA), source=["memcheck"])
    watching.load()
    watching.start()
    watching.switch_context(PLAN)
    from benchmarks import figures  # what it imports runs at import, too
    from benchmarks.engine_speed import forget

    plans = figures.plans()
    for plan in plans.values():
        figures.said(plan)
    for number, plan in plans.items():
        watching.switch_context(f"{PLAN} {number}")
        forget()
        figures.said(plan)
    for name, (_, said) in figures.BESIDE.items():
        watching.switch_context(f"{PLAN} {name}")
        said()
    watching.stop()
    watching.save()


class Lines:
    """The files of tests that run each line of the modules of a copy."""

    def __init__(self, copy: Path) -> None:
        """Read what ``record`` kept. Raises ``FileNotFoundError`` where it was not called."""
        from coverage import CoverageData

        if not (copy / DATA).exists():
            raise FileNotFoundError(copy / DATA)
        self.copy = copy
        self.data = CoverageData(basename=str(copy / DATA))
        self.data.read()

    def running(self, path: str, line: int) -> set[str]:
        """The files that run the statement on a line of a module. ``line``: from 1."""
        from coverage.parser import PythonParser

        text = (self.copy / path).read_text(encoding="utf-8")
        parser = PythonParser(text=text)
        parser.parse_source()
        first = parser.first_line(line)
        contexts = self.data.contexts_by_lineno(str(self.copy / path))
        return {name for at, names in contexts.items() if parser.first_line(at) == first for name in names if name}


if __name__ == "__main__":
    record_plans(Path.cwd())
