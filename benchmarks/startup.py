"""Whole-process time of memcheck against ``python -c pass``: alternating runs, median of 15, as a ratio.

    python benchmarks/startup.py [PLAN] [--runs N] [--many N] [--max RATIO]

A ratio holds on a slow or busy machine as on a fast one; milliseconds do not. ``--max`` makes it a gate for ``check``;
``--many`` also times that number of plans in one process: the same model, each another job. No verdict is remembered.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PLAN = os.path.join("examples", "llama-3.1-8b-fsdp-8xh100.yaml")
ENTRY = "import sys; from memcheck.__main__ import main; sys.exit(main())"


JOB = """\
memcheck: 1
name: plan-{number}
model: llama-3.1-8b
hardware: {{gpu: h100-80gb, gpus_per_node: 8, nodes: {nodes}}}
parallelism: {{zero_stage: 3, gradient_sync: every}}
training:
  framework: huggingface
  micro_batch_size: {batch}
  sequence_length: {sequence}
  gradient_accumulation_steps: {steps}
  precision: bf16-mixed
  optimizer: adamw
  activation_checkpointing: full
  attention: sdpa
"""
"""Clean whatever is filled in."""


def write_jobs(folder: str, count: int) -> None:
    """So many plans of different jobs."""
    every = itertools.product((1, 2, 4, 8, 16), (1024, 2048, 3072, 4096, 6144, 8192), (1, 2), range(1, 100))
    for number, (nodes, sequence, batch, steps) in enumerate(itertools.islice(every, 0, None, max(1, 5940 // count))):
        with open(os.path.join(folder, f"{number}.yaml"), "w", encoding="utf-8") as file:
            file.write(JOB.format(number=number, nodes=nodes, sequence=sequence, batch=batch, steps=steps))
        if number + 1 == count:
            break


def lines(plan: str) -> dict[str, list[str]]:
    """What is timed: a name and the interpreter's arguments."""
    return {
        "memcheck --version": ["-c", ENTRY, "--version"],
        "memcheck --help": ["-c", ENTRY, "--help"],
        "memcheck check PLAN": ["-c", ENTRY, "check", "--no-cache", plan],
        "memcheck check --format json PLAN": ["-c", ENTRY, "check", "--no-cache", "--format", "json", plan],
    }


def seconds(arguments: list[str]) -> float:
    """Wall-clock time of one interpreter from start to end."""
    environment = {**os.environ, "PYTHONPATH": ROOT}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
    start = time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, check=False)
    elapsed = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"{arguments} exited with {done.returncode}:\n{done.stderr.decode()}")
    return elapsed


def ratio(arguments: list[str], runs: int) -> float:
    """The median of alternating pairs, after one run that fills the bytecode cache."""
    seconds(arguments)
    pairs = sorted(seconds(arguments) / seconds(["-c", "pass"]) for _ in range(runs))
    return pairs[len(pairs) // 2]


def main() -> int:
    """Print one ratio per command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plan", nargs="?", default=PLAN)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--many", type=int, help="also time a folder of so many plans")
    parser.add_argument("--max", type=float, help="fail if `memcheck check PLAN` takes more than this many times")
    options = parser.parse_args()
    timed = {name: (arguments, options.runs) for name, arguments in lines(options.plan).items()}
    with tempfile.TemporaryDirectory() as folder:
        if options.many:
            write_jobs(folder, options.many)
            every = ["-c", ENTRY, "check", "--no-cache", folder]
            timed[f"memcheck check, {len(os.listdir(folder))} plans"] = (every, 5)
        ratios = {name: ratio(arguments, runs) for name, (arguments, runs) in timed.items()}
    for name, found in ratios.items():
        print(f"{found:5.1f} x python -c pass   {name}")
    return int(options.max is not None and ratios["memcheck check PLAN"] > options.max)


if __name__ == "__main__":
    sys.exit(main())
