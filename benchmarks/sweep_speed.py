"""Points per second of a sweep over 10,000 points, on one core, caches empty at the start.

    python benchmarks/sweep_speed.py [PLAN...]

A second of CPU time is what counts: other processes may be busy. Beside it, as a ratio that no machine changes: how
many estimates of one known job, whose memory curves are remembered, the same time would have paid for.
"""

from __future__ import annotations

import os
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

from benchmarks.engine_speed import forget, plan, rate, resolved  # noqa: E402
from memcheck.check import Gate  # noqa: E402
from memcheck.compare.build import Subject  # noqa: E402
from memcheck.source.load import load_documents  # noqa: E402
from memcheck.sweep.grid import Grid, axis  # noqa: E402
from memcheck.sweep.run import sweep  # noqa: E402
from memcheck.sweep.types import Sweep  # noqa: E402

STEP = (
    "training.sequence_length=2048,4096,8192,16384",
    "training.micro_batch_size=1,2,4,8",
    "training.activation_checkpointing=none,full",
)
STEPS = "training.gradient_accumulation_steps=8,16,32,64,128"
BATCH = "training.global_batch_size=1024,2048,4096,8192,16384"
PLANS = {
    "llama-3.1-8b-fsdp-8xh100.yaml": (
        *STEP,
        STEPS,
        "parallelism.tensor=1,2,4,8",
        "parallelism.zero_stage=0,1,3",
        "hardware.nodes=1,2,4,8,16,32",
    ),
    "llama-3.1-70b-torchtitan-256xh100.yaml": (
        *STEP,
        STEPS,
        "parallelism.tensor=1,2,4,8",
        "parallelism.zero_stage=1,3",
        "parallelism.pipeline=1,2,4,8",
        "hardware.nodes=16,32",
    ),
    "gpt-175b-megatron-64xa100.yaml": (
        *STEP,
        BATCH,
        "parallelism.tensor=2,4,8",
        "parallelism.virtual_stages=2,3,4",
        "parallelism.zero_stage=0,1",
        "hardware.nodes=8,16,32,64",
    ),
    "mixtral-8x7b-ep8-64xh100.yaml": (
        *STEP,
        BATCH,
        "parallelism.expert=1,2,4,8",
        "parallelism.zero_stage=0,1",
        "hardware.nodes=8,16,32,64,128,256,512,1024",
    ),
}
"""About 10,000 points each: what people vary. Legal and illegal points, layouts with and without a pipeline."""


def swept(name: str) -> tuple[Sweep, float]:
    """The answer, and the CPU seconds it took with nothing remembered."""
    path = os.path.join(ROOT, "examples", name)
    with open(path, "rb") as file:
        document = load_documents(path, file.read())[0]
    forget()
    start = time.process_time()
    answer = sweep(Subject(document, Gate()), Grid(tuple(map(axis, PLANS[name]))))
    return answer, time.process_time() - start


def main(names: list[str]) -> int:
    """Print a table."""
    known = rate([resolved(plan("llama-3.1-8b", 8, zero_stage=3, activation_checkpointing="full"))])
    print(f"{'plan':42} {'points':>7} {'legal':>7} {'points/s':>9} {'of known estimates':>19}")
    for name in names or PLANS:
        answer, seconds = swept(name)
        legal = sum(point.estimated for point in answer.points)
        speed = len(answer.points) / seconds
        print(f"{name:42} {len(answer.points):7,} {legal:7,} {speed:9,.0f} {speed / known:19.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
