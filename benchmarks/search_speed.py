"""Layouts per second of a search, and how long 2,000 of them take beside ``python -c pass``.

    python -m benchmarks.search_speed [--write] [NAME...]

Each search runs in a process of its own with nothing remembered, on one core, and is measured in CPU time. A layout
counts when it was judged: found to be illegal, ruled out by the lower bound of its peak, found to be slower than what
is shown, or priced. ``--write`` writes ``benchmarks/search.md``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from resource import RUSAGE_CHILDREN, getrusage

from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.resolve import resolve
from memcheck.memory.estimate import estimate
from memcheck.plan.read import load_documents, read_plan
from memcheck.record import Record
from memcheck.rules.run import make_context
from memcheck.rules.types import RuleContext
from memcheck.what_if.remedies.price import LayoutTally, Pricer
from memcheck.what_if.search.explore import explore
from memcheck.what_if.search.goals import search
from memcheck.what_if.search.space import space_of

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "search.md")
LAYOUTS = 2000
RUNS = 5

PLANS = {
    "8B torchtitan, 8 H100": ("llama-3.1-8b", "torchtitan", 1, "{zero_stage: 3}", 8192, 8),
    "8B Megatron, 4 nodes": ("llama-3.1-8b", "megatron", 4, "{tensor: 4}", 8192, 8),
    "70B torchtitan, 32 nodes": ("llama-3.1-70b", "torchtitan", 32, "{zero_stage: 3}", 8192, 2),
    "70B Megatron, 8 nodes": ("llama-3.1-70b", "megatron", 8, "{tensor: 8, pipeline: 4}", 8192, 64),
    "Mixtral Megatron, 8 nodes": ("mixtral-8x7b", "megatron", 8, "{expert: 8, zero_stage: 1}", 4096, 8),
    "32B FSDP, 2 nodes": ("qwen2.5-32b", "pytorch", 2, "{zero_stage: 3}", 8192, 4),
}


class Speed(Record):
    """One search."""

    seconds: float
    tally: LayoutTally


def context_of(name: str) -> RuleContext:
    """The plan of a name, as rules and searches look at it."""
    model, framework, nodes, parallelism, length, steps = PLANS[name]
    text = (
        f"memcheck: 1\nmodel: {model}\nhardware: {{gpu: h100-80gb, gpus_per_node: 8, nodes: {nodes}}}\n"
        f"parallelism: {parallelism}\ntraining: {{framework: {framework}, micro_batch_size: 2, "
        f"sequence_length: {length}, gradient_accumulation_steps: {steps}}}\n"
    )
    (document,) = load_documents("plan.yaml", text.encode())
    plan, findings = read_plan(document)
    if plan is None:
        raise ValueError(findings)
    resolved = resolve(plan, FRAMEWORKS, base_dir=".")
    context = make_context(plan, document, resolved, fail_above=0.9, warn_above=0.85)
    return context._replace(estimate=estimate(resolved.job, resolved.gpu, resolved.overhead))


def measured(name: str, what: str) -> Speed:
    """One search in this process: the ``throughput`` goal, or ``every`` plan of its space priced."""
    context = context_of(name)
    start = time.process_time()
    pricer = Pricer(context)
    if what == "every":
        for _ in explore(pricer, space_of(context, 0)):
            pass
    else:
        search(pricer, what)
    return Speed(time.process_time() - start, pricer.tally)


def elsewhere(name: str, what: str) -> Speed:
    """The same in a new process."""
    script = f"from benchmarks.search_speed import measured; s = measured({name!r}, {what!r}); print(s[0], *s[1])"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    return Speed(float(told[0]), LayoutTally(*map(int, told[1:])))


def empty_process() -> float:
    """CPU seconds of ``python -c pass``."""
    times = []
    for _ in range(RUNS):
        before = getrusage(RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        after = getrusage(RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times)


def rows(names: list[str]) -> list[str]:
    """A line of the table for each plan and way to search."""
    found = []
    for name in names:
        for what in ("throughput", "every") if name == next(iter(PLANS)) else ("throughput",):
            empty = empty_process()
            speed = elsewhere(name, what)
            tally = speed.tally
            rate = tally.considered / speed.seconds
            priced = tally.too_large + tally.fitting
            counts = (tally.considered, tally.illegal, tally.below_floor, tally.slower, priced)
            figures = [f"{count:,}" for count in counts] + [f"{rate:,.0f}", f"{LAYOUTS / rate:.2f} s"]
            found.append(f"| {' | '.join([name, what, *figures, f'{LAYOUTS / rate / empty:.0f} x'])} |")
            sys.stdout.write(f"{found[-1]}\n")
            sys.stdout.flush()
    return found


def main(arguments: list[str]) -> int:
    """Run, print, write."""
    names = [a for a in arguments if not a.startswith("--")] or list(PLANS)
    found = rows(names)
    if "--write" in arguments:
        lines = ["# How fast a search is", "", "<!-- Written by python -m benchmarks.search_speed --write -->", ""]
        lines += ["One core, CPU time, a process of its own with nothing remembered. `throughput` is the goal of"]
        lines += ["`memcheck suggest`, `every` prices each legal plan of the space whose states fit. Last columns:"]
        lines += [f"the time of {LAYOUTS:,} layouts, and that over the time of `python -c pass`.", ""]
        heads = (
            "plan",
            "search",
            "layouts",
            "illegal",
            "below the bound",
            "slower",
            "priced",
            "a second",
            "2,000",
            "x",
        )
        lines += [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
        with open(PAGE, "w", encoding="utf-8") as file:
            file.write("\n".join([*lines, *found]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
