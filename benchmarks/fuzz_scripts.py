"""Feed ``check`` with Python files, notebooks, wrappers and own files that nobody wrote, and count how they end.

    python -m benchmarks.fuzz_scripts --count 100000 --seed 1 [--first 0] [--state FILE ...] [--write]
    python -m benchmarks.fuzz_scripts --again SEED.NUMBER

What misbehaving is stands in ``benchmarks.fuzz_check``. A child process must not appear either: nothing is run.
``--state FILE`` keeps the counts, so that a run goes on after the last number of the one before; further files are
those of runs beside it, which began at another number, and are counted with it.
``--write`` writes ``benchmarks/fuzz_scripts.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

from benchmarks.fuzz_check import SWITCH, Outcome, described, run
from benchmarks.hostile_draw import Input, of_wrapper
from benchmarks.script_draw import draw_script
from memcheck.configs.python_expressions import MOST_STEPS

PAGE = Path(__file__).parent / "fuzz_scripts.md"
KINDS = {"script": "Python files and notebooks", "wrapper": "wrappers and files of a team's own"}


def drawn(seed: int, number: int) -> Input:
    """Input ``number`` of a seed: three scripts, then two wrappers."""
    if number % 5 < 3:
        return draw_script(seed, number)
    return of_wrapper(Random(f"wrapper.{seed}.{number}"))  # noqa: S311 - nothing is secret


def guarded() -> None:
    """Make every way to start another program an error."""

    def refuse(event: str, arguments: tuple[object, ...]) -> None:
        if event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn"):
            raise RuntimeError(f"{event} {arguments}")

    sys.addaudithook(refuse)


def counted(seed: int, first: int, count: int) -> Counter[str]:
    """Check inputs of a seed. Returns counts by kind and exit code, of faults, and of milliseconds of each kind."""
    counts: Counter[str] = Counter()
    os.environ[SWITCH] = "1"
    for number in range(first, first + count):
        given = drawn(seed, number)
        found: Outcome = run(given)
        faults = tuple(each for each in found.faults if each != "large")  # one process for all of them
        counts.update((f"{given.kind} exit {found.code}", f"{given.kind} ms {round(found.cpu_s * 1000)}"))
        counts.update(f"{given.kind} fault {each}" for each in faults)
        if faults:
            print(f"{seed}.{number}: {described(found)}", file=sys.stderr, flush=True)
    return counts


def page(seed: int, counts: Counter[str]) -> str:
    """What was counted, as a page."""
    rows: list[str] = []
    inputs = faults = 0
    for kind, title in KINDS.items():
        exits = [counts[f"{kind} exit {code}"] for code in range(3)]
        of_kind = {name.split(" ", 2)[1:][1]: n for name, n in counts.items() if name.startswith(f"{kind} ms ")}
        took = sorted((int(name), n) for name, n in of_kind.items())
        seen, median = 0, 0
        for each, n in took:
            median, seen = (each, seen + n) if seen < sum(exits) / 2 else (median, seen)
        bad = sum(n for name, n in counts.items() if name.startswith((f"{kind} fault", f"{kind} exit -")))
        inputs, faults = inputs + sum(of_kind.values()), faults + bad
        cells = [f"{each:,}" for each in (sum(of_kind.values()), *exits, bad, median, took[-1][0] if took else 0)]
        rows.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(
        (
            "# Fuzzed readers of scripts and wrappers",
            "",
            "<!-- Written by python -m benchmarks.fuzz_scripts --write -->",
            "",
            f"{inputs:,} inputs of seed {seed}: {faults} misbehaved. No program was started.",
            f"The reading of a script ends after {MOST_STEPS:,} steps.",
            "",
            "| inputs | number | exit 0 | exit 1 | exit 2 | misbehaved | median, ms | most, ms |",
            "|---|--:|--:|--:|--:|--:|--:|--:|",
            *rows,
            "",
        )
    )


def main() -> int:
    """Fuzz, print what was counted, and end in 1 if an input misbehaves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--state", type=Path, nargs="+", default=[])
    parser.add_argument("--again", metavar="SEED.NUMBER")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as kept:
        os.environ["XDG_CACHE_HOME"] = kept  # not the user's own
        if options.again:
            seed, number = map(int, options.again.split("."))
            given = drawn(seed, number)
            for name, data in given.files.items():
                print(f"--- {name}\n{data.decode('utf-8', 'replace')}")
            found = run(given)
            print(f"--- {' '.join(given.arguments)}: {described(found)}\n{found.said}")
            return int(bool(found.faults))
        before = [Counter(json.loads(each.read_text())) if each.exists() else Counter() for each in options.state]
        counts: Counter[str] = before[0] if before else Counter()
        first = options.first + sum(n for name, n in counts.items() if " ms " in name)
        guarded()
        counts += counted(options.seed, first, options.count)
    if options.state:
        options.state[0].write_text(json.dumps(counts))
    for each in before[1:]:
        counts = counts + each
    text = page(options.seed, counts)
    print(text, f"{time.monotonic() - start:.0f} s")
    if options.write:
        PAGE.write_text(text, encoding="utf-8")
    return int(any(" fault " in name for name in counts))


if __name__ == "__main__":
    sys.exit(main())
