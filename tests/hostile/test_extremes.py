"""Valid plans at the ends of what the schema takes: each is judged within a second and 200 MB, and none is a defect.

The second is one of a machine that starts Python in a hundredth of it: a slower machine has longer.
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

LAYERS = {"name": "llama-3.1-8b", "overrides": {"num_hidden_layers": 10_000}}
FUSED = ("phi-3-mini", "phi-4-mini", "phi-4", "glm-4-32b")
"""Models whose gate and up matrix is one."""
STARTS = 100
"""How often the processor time of ``python -c pass`` goes into the second."""
MEASURED = """
import json, sys
from benchmarks.fuzz_check import run
from benchmarks.hostile_draw import Input
print(*run(Input("plan", {"plan.yaml": sys.argv[1].encode()}, {}, (), ("plan.yaml",))))
"""


def plan(model: object, framework: str, parallelism: dict[str, Any], nodes: int = 1, **training: Any) -> dict[str, Any]:
    """A plan on eight H100 a node."""
    return {
        "memcheck": 1,
        "model": model,
        "hardware": {"gpu": "h100-80gb", "gpus_per_node": 8, "nodes": nodes},
        "parallelism": parallelism,
        "training": {"framework": framework, "micro_batch_size": 1, "sequence_length": 4096, **training},
    }


PLANS = {
    **{
        f"compiled {model}, {name}": plan(model, name, {}, compile=True)
        for model in FUSED
        for name in ("pytorch", "torchtune")
    },
    "MiniMax M2 under torchtune with ZeRO-3": plan("minimax-m2", "torchtune", {"zero_stage": 3}),
    "2^30 tokens under litgpt": plan("llama-3.1-8b", "litgpt", {}, sequence_length=2**30),
    "2^30 tokens of rows under litgpt": plan("llama-3.1-8b", "litgpt", {}, micro_batch_size=2**18),
    "4,096 chunks": plan("llama-3.1-8b", "torchtune", {}, loss={"kind": "chunked", "chunks": 4096}),
    "2^20 nodes": plan("llama-3.1-8b", "huggingface", {"zero_stage": 3}, 2**20),
    "2^20 nodes under Megatron": plan("llama-3.1-8b", "megatron", {"tensor": 8}, 2**20),
    "2^20 nodes and 5,000 layers with Muon": plan(
        LAYERS | {"overrides": {"num_hidden_layers": 5000}},
        "megatron",
        {"tensor": 8, "zero_stage": 1},
        2**20,
        optimizer="muon",
    ),
    "10,000 layers": plan(LAYERS, "huggingface", {}),
    "10,000 layers under Megatron": plan(LAYERS, "megatron", {}),
    "2^20 micro-batches": plan("llama-3.1-8b", "torchtitan", {"pipeline": 8}, gradient_accumulation_steps=2**20),
    "2^20 interleaved": plan(
        "llama-3.1-8b", "megatron", {"pipeline": 8, "virtual_stages": 4}, gradient_accumulation_steps=2**20
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_plans_at_the_ends_are_judged(root: Path, name: str) -> None:
    """In a process of its own: a verdict, with nothing amiss."""
    line = [sys.executable, "-c", MEASURED, json.dumps(PLANS[name])]
    before = start_s()
    said = subprocess.run(line, cwd=root, capture_output=True, text=True, check=True).stdout
    code, cpu_s, peak_mb, *_ = said.split(" ", 3)
    faults = set(re.findall(r"'(\w+)'", said[: said.index(")")])) - {"slow"}
    starts = float(cpu_s) / max(before, start_s())
    assert (code in {"0", "1"}, faults, starts < STARTS) == (True, set(), True), f"{starts:.1f} starts, {peak_mb} MB"


def start_s() -> float:
    """Processor time of ``python -c pass``."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
