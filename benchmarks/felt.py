"""CPU time of ``memcheck check`` beside yamllint, which merely parses the same files: a table of ratios.

    python -m benchmarks.felt [--plans N] [--runs N] [--jobs N] [--write]

Runs alternate, and each figure is the median of the ratios of neighbours: a ratio holds on a slow or busy machine as
on a fast one. Counted is the processor time of all processes together; ``elapsed`` is the ratio of elapsed times, which
shows what several processes gain. Without yamllint its columns are empty. A second table has the peak memory of one
process. ``--write`` writes ``benchmarks/felt.md``.
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
from collections.abc import Iterator

from benchmarks.startup import ENTRY, JOB, PLAN, ROOT, write_jobs

PAGE = os.path.join(ROOT, "benchmarks", "felt.md")
NOTHING = ["-c", "pass"]
ALONE = {
    "a plan that fits": [PLAN],
    "as JSON": ["--format", "json", PLAN],
    "one that does not (3B on one GPU)": ["examples/llama-3.2-3b-full-rtx-4090.yaml"],
    "one that does not (8B on 8 GPUs)": ["examples/llama-3.1-8b-long-context-8xh100.yaml"],
    "two that do not (8B on 1 and on 4)": ["examples/llama-3.1-8b-four-a100-40gb.yaml"],
    "two, of which one does not (Mixtral on 64)": ["examples/mixtral-8x7b-ep8-64xh100.yaml"],
}
"""Files that are checked one at a time, those that fail with the search for their remedies."""
LARGE = """\
memcheck: 1
model: {model}
hardware: {{gpu: h100-80gb, gpus_per_node: 8, nodes: 8}}
parallelism: {{zero_stage: 3}}
training:
  framework: deepspeed
  micro_batch_size: 2
  sequence_length: 8192
  precision: bf16-mixed
  optimizer: adamw
  activation_checkpointing: full
"""
"""A plan that fails, of whatever model is filled in: every gather of every module under ZeRO-3 is replayed."""
LARGEST = {"405B under ZeRO-3": "llama-3.1-405b"}
CHECK = ["-c", ENTRY, "check", "--exit-zero"]
STARTS = """\
import os, sys
child = os.posix_spawn(sys.executable, [sys.executable, *sys.argv[1:]], os.environ)
sys.stderr.write(f"\\n{os.wait4(child, 0)[2].ru_maxrss}")
"""
"""Starts an interpreter and says its peak: a process counts what its parent has where it starts, so that is small."""
LINTED = ["-m", "yamllint", "-d", "{extends: default, rules: {line-length: disable, document-start: disable}}"]
MODELS = [
    "falcon-7b",
    "gemma-2-27b",
    "gemma-2-9b",
    "gemma-3-27b",
    "gemma-3-4b",
    "gpt2",
    "granite-3.1-8b",
    "llama-3.1-70b",
    "llama-3.1-8b",
    "llama-3.2-1b",
    "llama-3.2-3b",
    "mistral-7b-v0.3",
    "glm-4-9b",
    "olmo-2-7b",
    "opt-6.7b",
    "phi-3-mini-4k",
    "phi-4",
    "pythia-6.9b",
    "qwen2.5-14b",
    "qwen2.5-32b",
    "qwen2.5-72b",
    "qwen2.5-7b",
    "qwen3-14b",
    "qwen3-30b-a3b",
    "qwen3-32b",
    "qwen3-8b",
    "starcoder2-7b",
    "deepseek-v2-lite",
]
"""Models of the folder of many."""
TOO_LARGE = ("gpu: h100-80gb", "gpu: rtx-4090")
HEAD = """\
# How long a check takes

<!-- Written by python -m benchmarks.felt --write -->

Ratios of processor time, medians of alternating runs: to an interpreter that does nothing, and to yamllint, which
merely parses the same files. Verdicts are kept only where plans are *unchanged*: those were checked before. The plans
of a folder are of one model unless it says so, each another job; of *half-failing* ones every second does not fit,
and its remedies are searched. *copies*: ten and ten are equal but for their names.
"""
COPIES = 10
"""Plans that are equal but for their names, among those of a family."""


def seconds(arguments: list[str], cache: str = "") -> tuple[float, float]:
    """Processor time and elapsed time of an interpreter with all processes that it starts."""
    environment = {**os.environ, "PYTHONPATH": ROOT}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
    if cache:
        environment["XDG_CACHE_HOME"] = cache
        environment.pop("MEMCHECK_NO_CACHE", None)
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, check=False)
    elapsed, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{arguments[:6]} exited with {done.returncode}:\n{done.stderr.decode()}")
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, elapsed


def write_cases(folder: str, count: int) -> dict[str, str]:
    """A folder of plans for each case."""
    cases = {name: os.path.join(folder, name) for name in ("clean", "half-failing", "copies")}
    for place in cases.values():
        os.mkdir(place)
        write_jobs(place, count)
    cases[f"of {len(MODELS)} models, clean"] = _write_models(folder, count)
    for number in range(0, count, 2):
        rewrite(os.path.join(cases["half-failing"], f"{number}.yaml"), *TOO_LARGE)
    for number in range(count):
        first = os.path.join(cases["copies"], f"{number - number % COPIES}.yaml")
        with open(first, encoding="utf-8") as file:
            text = file.read().replace(*TOO_LARGE)
        with open(os.path.join(cases["copies"], f"{number}.yaml"), "w", encoding="utf-8") as file:
            file.write(text.replace(f"name: plan-{number - number % COPIES}\n", f"name: plan-{number}\n"))
    return cases


def _write_models(folder: str, count: int) -> str:
    """A folder of plans that fit, of all models in turn."""
    place = os.path.join(folder, "models")
    os.mkdir(place)
    for number in range(count):
        turn, index = divmod(number, len(MODELS))
        text = JOB.format(number=number, nodes=64, sequence=(512, 1024)[turn % 2], batch=1, steps=1 + turn)
        with open(os.path.join(place, f"{number}.yaml"), "w", encoding="utf-8") as file:
            file.write(text.replace("llama-3.1-8b", MODELS[index]))
    return place


def _second_of(folder: str, example: str) -> str:
    """The second plan of an example, alone in a file."""
    with open(os.path.join(ROOT, "examples", example), encoding="utf-8") as file:
        _, second = file.read().split("\n---\n")
    path = os.path.join(folder, example)
    with open(path, "w", encoding="utf-8") as file:
        file.write(second)
    return path


def rewrite(path: str, old: str, new: str) -> None:
    """Replace some text of a file."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace(old, new))


def megabytes(arguments: list[str]) -> float:
    """The most memory that an interpreter has at once."""
    environment = {**os.environ, "PYTHONPATH": ROOT}
    line = [sys.executable, "-c", STARTS, *arguments]
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, check=False)
    return int(done.stderr.split()[-1]) / (2**20 if sys.platform == "darwin" else 2**10)


def ratios(arguments: list[str], others: list[list[str]], runs: int, cache: str = "") -> list[tuple[float, float]]:
    """Median ratios of processor time and of elapsed time to each of the others, from alternating runs behind two that
    fill caches.
    """
    seconds(arguments, cache)
    seconds(arguments, cache)
    rounds = [[seconds(arguments, cache), *map(seconds, others)] for _ in range(runs)]
    return [
        (statistics.median(r[0][0] / r[n][0] for r in rounds), statistics.median(r[0][1] / r[n][1] for r in rounds))
        for n in range(1, 1 + len(others))
    ]


def rows(options: argparse.Namespace, folder: str, cases: dict[str, str]) -> Iterator[tuple[str, str, str, str, str]]:
    """Case, processes, and the ratios."""
    linted = importlib.util.find_spec("yamllint") is not None
    alone = {**ALONE, "one that does not (Mixtral on 64)": [_second_of(folder, "mixtral-8x7b-ep8-64xh100.yaml")]}
    for name, model in LARGEST.items():
        path = os.path.join(folder, f"{model}.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(LARGE.format(model=model))
        alone[f"one that does not ({name})"] = [path]
    for name, arguments in alone.items():
        ((bare, _),) = ratios([*CHECK, "--no-cache", *arguments], [NOTHING], 3 * options.runs)
        yield name, "1", f"{bare:.1f}", "", ""
    for name, place in cases.items():
        for jobs in (1, options.jobs):
            others = [NOTHING, [*LINTED, place]][: 1 + linted]
            found = ratios([*CHECK, "--no-cache", "--jobs", str(jobs), place], others, options.runs)
            both = (f"{found[1][0]:.2f}", f"{found[1][1]:.2f}") if linted else ("", "")
            yield f"{options.plans:,} plans, {name}", str(jobs), f"{found[0][0]:.1f}", *both
    cache = os.path.join(folder, "cache")
    for name in ("clean", "half-failing"):
        ((bare, _),) = ratios([*CHECK, cases[name]], [NOTHING], options.runs, cache)
        yield f"{options.plans:,} plans, {name}, unchanged", "1", f"{bare:.1f}", "", ""


def peaks(options: argparse.Namespace, cases: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Case, and the most memory of one process."""
    for name, arguments in ALONE.items():
        yield name, f"{megabytes([*CHECK, '--no-cache', *arguments]):.0f}"
    for name, place in cases.items():
        yield f"{options.plans:,} plans, {name}", f"{megabytes([*CHECK, '--no-cache', '--jobs', '1', place]):.0f}"


def main() -> int:
    """Print one row for each case and number of processes, and write them down if that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plans", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    lines: list[str] = []

    def put(*cells: str) -> None:
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)

    with tempfile.TemporaryDirectory() as folder:
        cases = write_cases(folder, options.plans)
        put("checked", "processes", "x python -c pass", "x yamllint, CPU", "x yamllint, elapsed")
        put(*["---"] * 5)
        for row in rows(options, folder, cases):
            put(*row)
        lines.append("")
        put("checked by one process", "peak memory, MB")
        put(*["---"] * 2)
        for peak in peaks(options, cases):
            put(*peak)
    if options.write:
        with open(PAGE, "w", encoding="utf-8") as file:
            file.write("\n".join([HEAD, *lines]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
