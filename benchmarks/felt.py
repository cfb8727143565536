"""CPU time of ``memcheck check`` beside yamllint, which merely parses the same files: a table of ratios.

    python -m benchmarks.felt [--plans N] [--runs N] [--jobs N]

Runs alternate, and each figure is the median of the ratios of neighbours: a ratio holds on a slow or busy machine as
on a fast one. Counted is the processor time of all processes together; ``wall`` is the ratio of elapsed times, which
shows what several processes gain. Without yamllint its column is empty.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks.startup import ENTRY, ROOT, write_jobs

NOTHING = ["-c", "pass"]
LINTED = ["-m", "yamllint", "-d", "{extends: default, rules: {line-length: disable, document-start: disable}}"]
TOO_LARGE = ("gpu: h100-80gb", "gpu: rtx-4090")
COPIES = 10
"""Plans that are equal but for their names, among those of a family."""


def seconds(arguments: list[str]) -> tuple[float, float]:
    """Processor time and elapsed time of an interpreter with all processes that it starts."""
    environment = {**os.environ, "PYTHONPATH": ROOT}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, check=False)
    elapsed, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{arguments[:6]} exited with {done.returncode}:\n{done.stderr.decode()}")
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, elapsed


def write_cases(folder: str, count: int) -> dict[str, str]:
    """A folder of plans for each case."""
    cases = {name: os.path.join(folder, name) for name in ("one", "clean", "half-failing", "copies")}
    for name, place in cases.items():
        os.mkdir(place)
        write_jobs(place, 1 if name == "one" else count)
    for number in range(0, count, 2):
        rewrite(os.path.join(cases["half-failing"], f"{number}.yaml"), *TOO_LARGE)
    for number in range(count):
        first = os.path.join(cases["copies"], f"{number - number % COPIES}.yaml")
        with open(first, encoding="utf-8") as file:
            text = file.read().replace(*TOO_LARGE)
        with open(os.path.join(cases["copies"], f"{number}.yaml"), "w", encoding="utf-8") as file:
            file.write(text.replace(f"name: plan-{number - number % COPIES}\n", f"name: plan-{number}\n"))
    return cases


def rewrite(path: str, old: str, new: str) -> None:
    """Replace some text of a file."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace(old, new))


def ratios(arguments: list[str], other: list[str], runs: int) -> tuple[float, float]:
    """Median ratios of processor time and of elapsed time, from alternating runs behind one that fills caches."""
    seconds(arguments)
    pairs = [(seconds(arguments), seconds(other)) for _ in range(runs)]
    cpu = statistics.median(mine[0] / theirs[0] for mine, theirs in pairs)
    return cpu, statistics.median(mine[1] / theirs[1] for mine, theirs in pairs)


def main() -> int:
    """Print one row for each case and number of processes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plans", type=int, default=200)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    linted = importlib.util.find_spec("yamllint") is not None
    print(f"{'case':14} {'plans':>5} {'jobs':>4}  {'x python -c pass':>16}  {'x yamllint, cpu':>15}  {'wall':>6}")
    with tempfile.TemporaryDirectory() as folder:
        for name, place in write_cases(folder, options.plans).items():
            for jobs in (1,) if name == "one" else (1, options.jobs):
                check = ["-c", ENTRY, "check", "--no-cache", "--jobs", str(jobs), "--exit-zero", place]
                bare, _ = ratios(check, NOTHING, options.runs)
                peer = ratios(check, [*LINTED, place], options.runs) if linted else None
                beside = f"{peer[0]:15.2f}  {peer[1]:6.2f}" if peer else ""
                print(f"{name:14} {len(os.listdir(place)):5} {jobs:4}  {bare:16.1f}  {beside}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
