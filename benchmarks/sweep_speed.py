"""Points per second of a sweep over 10,000 points, on one core, caches empty at the start.

    python -m benchmarks.sweep_speed [--write] [PLAN...]

A second of CPU time of one process (``time.process_time``) is what counts: other processes may be busy, though they
still take caches and clock from this one. Beside it, as a ratio that no machine changes: how many estimates of one
known job, whose memory curves are remembered, the same time would have paid for. ``--write`` writes
``benchmarks/sweep.md``.
"""

from __future__ import annotations

import os
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = os.path.join(ROOT, "benchmarks", "sweep.md")
sys.path.insert(0, ROOT)

from benchmarks.engine_speed import forget, plan, rate, resolved  # noqa: E402
from memcheck.judge import Gate  # noqa: E402
from memcheck.plan.read import load_documents  # noqa: E402
from memcheck.what_if.compare import ComparedPlan  # noqa: E402
from memcheck.what_if.sweep import Sweep, SweepGrid, axis, sweep  # noqa: E402

BATCHES = "training.micro_batch_size=1,2,4,8"
PLANS = {
    "llama-3.1-8b-fsdp-8xh100.yaml": (
        "training.sequence_length=1024,2048,4096,8192,16384",
        BATCHES,
        "training.activation_checkpointing=none,full",
        "training.precision=bf16-mixed,bf16-pure,fp32",
        "parallelism.tensor=1,2,4,8",
        "parallelism.zero_stage=0,1,3",
        "hardware.nodes=1,2,4,8,16,32,64,128",
    ),
    "llama-3.1-70b-torchtitan-256xh100.yaml": (
        "training.sequence_length=2048,4096,8192,16384",
        BATCHES,
        "training.activation_checkpointing=none,selective,full",
        "training.precision=bf16-mixed,fp32",
        "training.gradient_accumulation_steps=16",
        "parallelism.tensor=1,2,4,8",
        "parallelism.pipeline=1,2,4,8",
        "parallelism.zero_stage=1,3",
        "hardware.nodes=8,16,32,64",
    ),
    "gpt-175b-megatron-64xa100.yaml": (
        "training.sequence_length=256,512,1024,2048",
        BATCHES,
        "training.activation_checkpointing=none,selective,full",
        "training.precision=bf16-mixed,{recipe: bf16-mixed, gradients: bf16}",
        "training.global_batch_size=8192",
        "parallelism.tensor=2,4,8",
        "parallelism.virtual_stages=2,3,4",
        "parallelism.zero_stage=0,1",
        "hardware.nodes=8,16,32,64,128,256",
    ),
    "mixtral-8x7b-ep8-64xh100.yaml": (
        "training.sequence_length=1024,2048,4096,8192,16384,32768",
        BATCHES,
        "training.activation_checkpointing=none,selective,full",
        "training.precision=bf16-mixed,fp8-mixed",
        "training.global_batch_size=8192",
        "parallelism.tensor=1,2",
        "parallelism.expert=1,2,4,8",
        "parallelism.zero_stage=0,1",
        "hardware.nodes=8,16,32,64",
    ),
}
"""About 10,000 points each, of what people vary and the engine has to price anew: batch, sequence, recompute,
precision and degrees. No axis only repeats a price, as accumulated micro-batches often do; how many prices differ is
in the table.
"""


def swept(name: str) -> tuple[Sweep, float]:
    """The answer, and the CPU seconds it took with nothing remembered."""
    path = os.path.join(ROOT, "examples", name)
    with open(path, "rb") as file:
        document = load_documents(path, file.read())[0]
    forget()
    start = time.process_time()
    answer = sweep(ComparedPlan(document, Gate()), SweepGrid(tuple(map(axis, PLANS[name]))))
    return answer, time.process_time() - start


def prices(answer: Sweep) -> int:
    """How many points differ in what memory was predicted for them, component by component."""
    return len({tuple(point.components_bytes.items()) for point in answer.points if point.estimated})


HEADS = ("plan", "axes", "points", "legal", "prices", "points a second", "of known estimates")
INTRODUCTION = """# How fast a sweep is

<!-- Written by python -m benchmarks.sweep_speed --write -->

One process, CPU time (`time.process_time`), nothing remembered at the start. The axes are batch, sequence, recompute,
precision and degrees; `prices` are points that differ in some component of the predicted memory. The others come to the
same memory another way, such as more data-parallel ranks that share nothing. The last column is the speed over that of
estimates of one known 8B job in the same process: a second is not the same on every machine, and on the one
that recorded these it varies by a quarter from minute to minute.
"""


def rows(names: list[str]) -> list[str]:
    """A line of the table for each plan."""
    known = rate([resolved(plan("llama-3.1-8b", 8, zero_stage=3, activation_checkpointing="full"))])
    found = []
    for name in names:
        answer, seconds = swept(name)
        legal = sum(point.estimated for point in answer.points)
        speed = len(answer.points) / seconds
        axes = "; ".join(axis.rpartition(".")[2].replace("=", " ") for axis in PLANS[name])
        counts = [f"{count:,}" for count in (len(answer.points), legal, prices(answer))]
        cells = [name.removesuffix(".yaml"), axes, *counts, f"{speed:,.0f}", f"{speed / known:.2f}"]
        found.append(f"| {' | '.join(cells)} |")
        sys.stdout.write(f"{found[-1]}\n")
        sys.stdout.flush()
    return found


def main(arguments: list[str]) -> int:
    """Run, print, write."""
    found = rows([a for a in arguments if not a.startswith("--")] or list(PLANS))
    if "--write" in arguments:
        lines = [INTRODUCTION, f"| {' | '.join(HEADS)} |", f"|{'---|' * len(HEADS)}", *found]
        with open(PAGE, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
