"""What is kept from one estimate to the next changes the time that it takes, and no byte of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.engine_speed import forget
from memcheck.errors import MemcheckError
from memcheck.frameworks.megatron import ranks as megatron_ranks
from memcheck.frameworks.megatron import schedule as megatron_candidates
from memcheck.frameworks.megatron import step as megatron_step
from memcheck.frameworks.megatron.schedule import WARM_INPUT, InFlight, Pass, PassRun
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.frameworks.torch import load_and_save, rank_steps
from memcheck.frameworks.torch import stack as host
from memcheck.frameworks.torch import stack as ranks
from memcheck.job.resolve import resolve
from memcheck.judge import Gate
from memcheck.memory.estimate import estimate
from memcheck.plan.places import Document
from memcheck.plan.read import load_documents, read_plan, with_changes
from memcheck.what_if.points import Evaluator

EXAMPLES = Path(__file__).parents[2] / "examples"
CHANGES = 6
"""Random variants of each example."""
AXES: dict[str, list[object]] = {
    "training.sequence_length": [512, 1000, 2048, 8192],
    "training.micro_batch_size": [1, 2, 3, 8],
    "training.activation_checkpointing": [
        "none",
        "selective",
        "full",
        {"mode": "full", "every_n_layers": 2},
        {"mode": "full", "offload": "cpu"},
    ],
    "training.gradient_accumulation_steps": [1, 2, 3, 4, 7, 16, 64],
    "training.precision": ["bf16-mixed", "fp32", "fp16-mixed", "bf16-pure", "fp8-mixed"],
    "training.optimizer": ["adamw", "sgd", "adamw-8bit", "muon", "lion", {"name": "adamw", "offload": "cpu"}],
    "training.framework": ["huggingface", "pytorch", "torchtitan", "megatron", "deepspeed"],
    "training.freeze": [["embed"], ["layers:0-3"]],
    "training.loss": ["standard", "chunked", "fused-linear", "vocab-parallel"],
    "training.torch_version": ["2.13", "2.15"],
    "parallelism.tensor": [1, 2, 4, 8],
    "parallelism.pipeline": [1, 2, 4, 8],
    "parallelism.virtual_stages": [1, 2, 4],
    "parallelism.pipeline_schedule": ["1f1b", "gpipe", "interleaved-1f1b", "zero-bubble", "dualpipe"],
    "parallelism.context": [1, 2],
    "parallelism.expert": [1, 2, 4, 8],
    "parallelism.zero_stage": [0, 1, 2, 3],
    "parallelism.shard_group": [1, 2, 4, 8],
    "parallelism.reshard_after_forward": [True, False],
    "parallelism.gradient_sync": ["every", "last"],
    "parallelism.gradient_as_bucket_view": [True, False],
    "hardware.nodes": [1, 2, 4, 8, 32],
}


def documents() -> list[Document]:
    """Every plan of the examples that trains."""
    found = [d for path in sorted(EXAMPLES.glob("*.yaml")) for d in load_documents(str(path), path.read_bytes())]
    return [d for d in found if isinstance(d.values, dict) and isinstance(d.values.get("training"), dict)]


def variants(document: Document, seed: str) -> Iterator[dict[str, object]]:
    """Random changes of a plan."""
    chance = random.Random(seed)  # noqa: S311 - which plans are compared is no secret
    for _ in range(CHANGES):
        yield {key: chance.choice(AXES[key]) for key in chance.sample(sorted(AXES), chance.randint(1, 6))}


def spelled(value: Any) -> object:
    """A record with the order of its mappings, which equality overlooks."""
    if isinstance(value, dict):
        return [(key, spelled(each)) for key, each in value.items()]
    return [type(value).__name__, *map(spelled, value)] if isinstance(value, tuple) else value


def answer(document: Document, changes: dict[str, object]) -> object:
    """The whole estimate of every rank, and of those that may be the worst; or why there is none."""
    plan, findings = read_plan(with_changes(document, changes))
    if plan is None:
        return [finding.message for finding in findings]
    try:
        r = resolve(plan, FRAMEWORKS, base_dir=str(EXAMPLES))
        return [spelled(estimate(r.job, r.gpu, r.overhead, every_rank=every)) for every in (True, False)]
    except (MemcheckError, ZeroDivisionError) as error:
        return str(error)


def every_place(schedule: tuple[PassRun, ...], kinds: tuple[int, ...], every_chunk_saves: bool) -> tuple[InFlight, ...]:
    """Every moment of a schedule, whether it can be its pass's fullest or not."""
    counts, began, number = [0] * len(kinds), False, 0
    warm, left = megatron_candidates._last_warm_up_input(schedule)
    found: list[InFlight] = []
    for run in schedule:
        for _ in range(run.times):
            waits = WARM_INPUT if left <= 0 else int(began)
            for forward, chunk in ((True, run.forward_chunk), (False, run.backward_chunk)):
                if chunk is None:
                    continue
                counts[chunk] -= not forward
                number += 1
                found.append(InFlight(number, Pass(forward, chunk), tuple(counts), waits))
                counts[chunk] += forward
            began = began or run.backward_chunk is not None
            left -= run.backward_chunk == warm
    return tuple(sorted(found, key=lambda moment: (not moment.running_pass.is_forward, moment.number)))


@pytest.fixture
def nothing_shared(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Every step and every state made from its own whole job, every pass of a pipeline recorded."""
    monkeypatch.setattr(ranks, "step_key", lambda job, torch: job._replace(torch=(torch,)))
    monkeypatch.setattr(ranks, "unsharded_step_key", lambda job: job)
    monkeypatch.setattr(ranks, "distinct_micro_batches", lambda job: job.gradient_accumulation_steps)
    monkeypatch.setattr(rank_steps, "unit_key", lambda job: job)
    monkeypatch.setattr(megatron_ranks, "step_key", lambda job, num_layers: job)
    monkeypatch.setattr(megatron_ranks, "distinct_micro_batches", lambda job, num_layers: lambda steps: steps)
    for module in (ranks, load_and_save, megatron_ranks, host):
        monkeypatch.setattr(module, "state_key", lambda job: job)
    monkeypatch.setattr(megatron_step, "candidates", every_place)
    return monkeypatch


@pytest.mark.slow
def test_estimates_that_share_are_those_that_share_nothing(request: pytest.FixtureRequest) -> None:
    """Of every example under random changes: every figure, label and component in its order, byte for byte."""
    asked = [(d, c) for i, d in enumerate(documents()) for c in variants(d, f"{Path(d.path).name} {i}")]
    forget()
    shared = [answer(document, changes) for document, changes in asked]
    request.getfixturevalue("nothing_shared")
    priced = 0
    for (document, changes), expected in zip(asked, shared, strict=True):
        forget()
        assert answer(document, changes) == expected, (document.path, changes)
        priced += isinstance(expected, list) and isinstance(expected[0], list)
    assert priced > len(asked) // 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["llama-3.1-70b-torchtitan-256xh100", "mixtral-8x7b-ep8-64xh100", "gpt-175b-megatron-64xa100"],
)
def test_a_point_of_a_grid_is_the_point_alone(name: str) -> None:
    """Verdict, problems, memory and step of points behind many others are those of a reader and an engine of their own."""
    path = EXAMPLES / f"{name}.yaml"
    document = load_documents(str(path), path.read_bytes())[0]
    together = Evaluator(document, Gate())
    asked = [changes for seed in range(5) for changes in variants(document, f"{name} {seed}")]
    found = [spelled(together.point(changes)) for changes in asked]
    for changes, expected in zip(asked[::3], found[::3], strict=True):
        forget()
        assert spelled(Evaluator(document, Gate()).point(changes)) == expected, changes


def test_one_is_not_true() -> None:
    """Values that Python takes for equal are variants of their own: a flag is no number."""
    path = EXAMPLES / "llama-3.1-8b-fsdp-8xh100.yaml"
    evaluator = Evaluator(load_documents(str(path), path.read_bytes())[0], Gate())
    assert evaluator.point({"training.micro_batch_size": 1}).estimated
    assert not evaluator.point({"training.micro_batch_size": True}).estimated
