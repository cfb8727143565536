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

PLANS = (
    "llama-3.1-8b-fsdp-8xh100.yaml",
    "llama-3.1-70b-torchtitan-256xh100.yaml",
    "gpt-175b-megatron-64xa100.yaml",
    "mixtral-8x7b-ep8-64xh100.yaml",
)
AXES = (
    "training.sequence_length=2048,4096,8192,16384",
    "training.micro_batch_size=1,2,4,8",
    "training.activation_checkpointing=none,full",
    "parallelism.tensor=1,2,4,8",
    "parallelism.zero_stage=0,1,3",
    "training.gradient_accumulation_steps=4,8,16,32,64",
    "hardware.nodes=1,2,4,8,16,32",
)
"""11,520 points: what people vary, three of seven axes without an effect on a layer's memory curve."""


def swept(name: str) -> tuple[Sweep, float]:
    """The answer, and the CPU seconds it took with nothing remembered."""
    path = os.path.join(ROOT, "examples", name)
    with open(path, "rb") as file:
        document = load_documents(path, file.read())[0]
    forget()
    start = time.process_time()
    answer = sweep(Subject(document, Gate()), Grid(tuple(map(axis, AXES))))
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
