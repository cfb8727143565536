"""Feed ``check`` with Python files and notebooks that nobody wrote, and count how they end.

    python -m benchmarks.fuzz_scripts --count 100000 --seed 1 [--first 0] [--write]
    python -m benchmarks.fuzz_scripts --again SEED.NUMBER

What misbehaving is stands in ``benchmarks.fuzz_check``. A child process must not appear either: nothing is run.
``--write`` writes ``benchmarks/fuzz_scripts.md``.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.fuzz_check import SWITCH, Outcome, described, run
from benchmarks.script_draw import draw_script
from memcheck.configs.python_expressions import MOST_STEPS

PAGE = Path(__file__).parent / "fuzz_scripts.md"
SLOW_S = 1.0


def guarded() -> None:
    """Make every way to start another program an error."""

    def refuse(event: str, arguments: tuple[object, ...]) -> None:
        if event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn"):
            raise RuntimeError(f"{event} {arguments}")

    sys.addaudithook(refuse)


def counted(seed: int, first: int, count: int) -> tuple[Counter[str], list[tuple[int, Outcome]], list[float]]:
    """Check files of a seed. Returns counts of exit codes and faults, the outcomes with faults, and seconds of each."""
    counts: Counter[str] = Counter()
    faulty: list[tuple[int, Outcome]] = []
    seconds: list[float] = []
    os.environ[SWITCH] = "1"
    for number in range(first, first + count):
        found = run(draw_script(seed, number))
        faults = tuple(each for each in found.faults if each != "large")  # one process for all of them
        counts.update((f"exit {found.code}", *(f"fault {each}" for each in faults)))
        seconds.append(found.cpu_s)
        if faults:
            faulty.append((number, found))
            print(f"{seed}.{number}: {described(found)}", file=sys.stderr, flush=True)
    return counts, faulty, seconds


def page(seed: int, first: int, counts: Counter[str], seconds: list[float]) -> str:
    """What was counted, as a page."""
    faults = sum(number for name, number in counts.items() if name.startswith("fault"))
    ordered = sorted(seconds)
    lines = [
        "# Fuzzed scripts",
        "",
        "<!-- Written by python -m benchmarks.fuzz_scripts --write -->",
        "",
        f"{len(seconds):,} Python files and notebooks of seed {seed}, from number {first:,}: {faults} misbehaved.",
        f"Processor time: {ordered[len(ordered) // 2] * 1000:.0f} ms in the median, at most {ordered[-1]:.2f} s.",
        f"The reading of a file ends after {MOST_STEPS:,} steps.",
        "",
        "| ended in | files |",
        "|---|--:|",
        *(f"| {name} | {number:,} |" for name, number in sorted(counts.items())),
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    """Fuzz, print what was counted, and end in 1 if a file misbehaves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--again", metavar="SEED.NUMBER")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as kept:
        os.environ["XDG_CACHE_HOME"] = kept  # not the user's own
        if options.again:
            seed, number = map(int, options.again.split("."))
            given = draw_script(seed, number)
            for name, data in given.files.items():
                print(f"--- {name}\n{data.decode('utf-8', 'replace')}")
            found = run(given)
            print(f"--- {' '.join(given.arguments)}: {described(found)}\n{found.said}")
            return int(bool(found.faults))
        guarded()
        start = time.monotonic()
        counts, faulty, seconds = counted(options.seed, options.first, options.count)
    text = page(options.seed, options.first, counts, seconds)
    print(text, f"{time.monotonic() - start:.0f} s")
    if options.write:
        PAGE.write_text(text, encoding="utf-8")
    return int(bool(faulty))


if __name__ == "__main__":
    sys.exit(main())
