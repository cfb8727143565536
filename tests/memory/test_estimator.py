"""One estimator for jobs that differ in their batch alone says of each what an estimator of its own says."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.resolve import framed, resolve, with_batch
from memcheck.job.types import Overhead, TrainingJob
from memcheck.judge import Gate
from memcheck.memory.estimate import Estimator, estimate
from memcheck.plan.read import load_documents, read_plan
from memcheck.plan.types import Plan, TrainingSpec
from memcheck.what_if.points import Evaluator
from memcheck.what_if.variants import BATCH

EXAMPLES = Path(__file__).parents[2] / "examples"
PLANS = sorted(
    path.name
    for path in EXAMPLES.glob("*.yaml")
    if any(isinstance(d.values, dict) and "training" in d.values for d in load_documents(str(path), path.read_bytes()))
)
BATCHES = 5


def plan_of(name: str) -> Plan:
    """An example's first plan."""
    path = EXAMPLES / name
    plan, _ = read_plan(load_documents(str(path), path.read_bytes())[0])
    assert plan is not None
    return plan


def batches(plan: Plan, seed: str) -> list[TrainingSpec]:
    """Its training with other batches."""
    chance = random.Random(seed)  # noqa: S311 - which batches are tried is no secret
    assert plan.training is not None
    found = []
    for _ in range(BATCHES):
        batch = {"micro_batch_size": chance.randint(1, 5), "sequence_length": chance.choice([512, 1000, 4096])}
        batch["gradient_accumulation_steps"] = chance.choice([1, 2, 3, 17])
        found.append(plan.training._replace(**{**dict.fromkeys(BATCH), **batch}))
    return found


@pytest.mark.parametrize("overhead", [Overhead(), Overhead("flat", 0.1)], ids=["modeled", "flat"])
@pytest.mark.parametrize("name", PLANS)
def test_batches_share_an_estimator(name: str, overhead: Overhead) -> None:
    """Every figure, component and word of the worst rank, and of all ranks."""
    plan = plan_of(name)
    frame = framed(plan, FRAMEWORKS, base_dir=str(EXAMPLES))
    shared = Estimator(frame.job, frame.gpu, overhead)
    for training in batches(plan, name):
        resolved = with_batch(frame, training)
        job = resolved.job
        assert isinstance(job, TrainingJob)
        assert resolved == resolve(plan._replace(training=training), FRAMEWORKS, base_dir=str(EXAMPLES))
        assert shared.worst(job) == estimate(job, frame.gpu, overhead, every_rank=False)
        assert shared.ranks(job) == estimate(job, frame.gpu, overhead)


def test_a_grid_of_batches_has_one_frame() -> None:
    """Points with other sequences, micro-batches and accumulation share one; another precision has its own."""
    path = EXAMPLES / "llama-3.1-8b-fsdp-8xh100.yaml"
    evaluator = Evaluator(load_documents(str(path), path.read_bytes())[0], Gate())
    for length in (1024, 2048):
        for batch in (1, 2):
            evaluator.point({"training.sequence_length": length, "training.micro_batch_size": batch})
    assert evaluator.frames == 1
    evaluator.point({"training.precision": "fp32"})
    assert evaluator.frames == 2
