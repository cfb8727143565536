"""Other values of what a plan leaves out: which keys have one, and why the others have none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import figures
from memcheck.config.find import EVERY, Gate
from memcheck.judge import check_file
from memcheck.rules.grounds import ALTERNATIVES, alternative
from memcheck.rules.result import PlanResult

EXPERIMENT = "the plan would be another experiment"
FOLLOWS = "it follows from other keys"
MACHINE = "the plan would be of other hardware"
UNKNOWN = "no value is known that people often run"
UNVARIED = {
    "hardware.gpus_per_node": MACHINE,
    "hardware.nodes": MACHINE,
    "inference.batch_size": EXPERIMENT,
    "inference.chunk": UNKNOWN,
    "model": "it is a fact about the model, and no key",
    "parallelism.data": FOLLOWS,
    "parallelism.expert_tensor": FOLLOWS,
    "parallelism.pipeline_schedule": FOLLOWS,
    "parallelism.shard_group": FOLLOWS,
    "policy.overhead": "it is how memcheck counts, and nothing that runs",
    "training.base.held_in": EXPERIMENT,
    "training.evaluation.micro_batch_size": UNKNOWN,
    "training.evaluation.sequence_length": FOLLOWS,
    "training.framework": "MEM403 asks for it",
    "training.framework_version": UNKNOWN,
    "training.head": EXPERIMENT,
    "training.head.kind": EXPERIMENT,
    "training.head.labels": EXPERIMENT,
    "training.images": "it is how images are counted, and no key",
    "training.loss.chunks": UNKNOWN,
    "training.method": EXPERIMENT,
    "training.micro_batch_size": EXPERIMENT,
    "training.objective": EXPERIMENT,
    "training.offload.parameters": FOLLOWS,
    "training.objective.beta": EXPERIMENT,
    "training.objective.prompt_length": UNKNOWN,
    "training.optimizer.offload": FOLLOWS,
    "training.options.accelerate_version": UNKNOWN,
    "training.options.components": UNKNOWN,
    "training.options.groupsize": UNKNOWN,
    "training.options.pin_memory": "it is about host memory alone",
    "training.options.pipeline_parallel_first_stage_less_layers": FOLLOWS,
    "training.options.pipeline_parallel_last_stage_less_layers": FOLLOWS,
    "training.options.transformer_engine_version": UNKNOWN,
    "training.options.transformers_version": UNKNOWN,
    "training.precision.compute": FOLLOWS,
    "training.precision.params": FOLLOWS,
    "training.target_length": FOLLOWS,
    "training.torch_version": UNKNOWN,
    "training.trainer.name": UNKNOWN,
    "training.trainer.version": UNKNOWN,
}
"""Keys of assumptions that are not varied, and why; keys of a processor of images belong to the model."""
"""Keys of assumptions that have no other value, and why. Limits of an image processor belong to the model's files."""
PROCESSOR = "training.images."
GRID = ("per_sample",)


def assumed() -> dict[str, set[str]]:
    """Every key that some kept plan leaves out, with the numbers of those plans."""
    found: dict[str, set[str]] = {}
    for number, plan in figures.plans().items():
        for result in check_file("plan.yaml", json.dumps(plan).encode(), Gate())[0]:
            for each in result.assumptions:
                found.setdefault(each.key, set()).add(number)
    return found


@pytest.mark.slow
def test_every_assumption_has_another_value_or_a_reason() -> None:
    """A new default needs one or the other."""
    keys = {key for key in assumed() if not key.startswith(PROCESSOR) or key.endswith(GRID)}
    assert keys - set(ALTERNATIVES) - set(UNVARIED) == set()
    assert not set(ALTERNATIVES) & set(UNVARIED)


def test_another_value_is_another() -> None:
    """Whatever the default is."""
    for key in ALTERNATIVES:
        for value in ALTERNATIVES[key]:
            assert alternative(key, value) != value, key
        assert alternative(key, object()) == ALTERNATIVES[key][0], key


def judged(text: str, grounds: int = EVERY, **changes: object) -> PlanResult:
    """One plan."""
    (result,), traces = check_file("plan.yaml", text.encode(), Gate(grounds=grounds, changes=changes))
    assert not traces
    return result


FITS = """memcheck: 1
model: llama-3.1-8b
hardware: {gpu: h100-80gb, gpus_per_node: 8}
parallelism: {zero_stage: 3}
training: {framework: huggingface, precision: bf16-mixed, micro_batch_size: 1, sequence_length: 4096}
"""
REPLICATED = """memcheck: 1
model: gpt2
hardware: {gpu: a100-40gb, gpus_per_node: 8}
training: {framework: megatron, precision: bf16-mixed, micro_batch_size: 1, sequence_length: 1024}
"""


@pytest.mark.parametrize("text", [FITS, REPLICATED], ids=["sharded", "replicated"])
def test_each_figure_is_that_of_the_plan_with_the_value_written(text: str) -> None:
    """The engine computes them; the largest comes first, and each moves the need by more than 1 %."""
    result = judged(text)
    assert result.status == "passed"
    assert result.estimate is not None
    assert result.rests_on
    need = result.estimate.needed_bytes
    moves = [abs(each.needed_bytes - need) for each in result.rests_on]
    assert moves == sorted(moves, reverse=True)
    assert min(moves) > 0.01 * need
    for each in result.rests_on:
        there = judged(text, 0, **{each.key: each.other}).estimate
        assert there is not None
        assert (there.needed_bytes, there.utilization) == (each.needed_bytes, each.utilization)


def test_what_is_stated_is_no_assumption() -> None:
    """Nor is what would be another plan, as a ZeRO stage on one GPU."""
    stated = FITS.replace("precision: bf16-mixed", "precision: bf16-mixed, attention: sdpa, loss: standard")
    keys = {each.key for each in judged(stated).rests_on}
    assert keys
    assert not keys & {"training.attention", "training.loss.kind", "parallelism.zero_stage"}
    alone = judged(REPLICATED.replace(", gpus_per_node: 8", ""))
    assert "parallelism.zero_stage" not in {each.key for each in alone.rests_on}


def test_a_stage_that_is_left_out_is_named() -> None:
    """A pass at ZeRO stage 0 says what stage 1 would need."""
    (stage,) = (each for each in judged(REPLICATED).rests_on if each.key == "parallelism.zero_stage")
    assert (stage.value, stage.other) == (0, 1)


def test_a_quick_look_counts_what_it_left_out() -> None:
    """Those that were tried are computed as always; the others are counted."""
    every, quick = judged(FITS), judged(FITS, 2)
    assert every.untried == 0
    assert quick.untried > 0
    assert set(quick.rests_on) <= set(every.rests_on)
    assert judged(FITS, 0).rests_on == ()


def test_what_settles_an_uncertain_plan(tmp_path: Path) -> None:
    """An assumption that decides is named with the other value; where none does, only a run can tell."""
    estimate = judged(FITS).estimate
    assert estimate is not None
    low, high = (each / 2**30 for each in estimate.needed_interval_bytes)
    assert judged(FITS).settled_by == ""
    card = "gpu: {name: lab, memory_gib: %.2f}"
    uncertain = FITS.replace("gpu: h100-80gb", card % ((low + 3 * high) / 4 / 0.95))
    result = judged(uncertain, 0)
    assert result.verdict == "uncertain"
    assert result.settled_by.startswith("state `training.expandable_segments: true`: the plan assumes `false`")
    assert "it fits, between " in result.settled_by
    stated = "expandable_segments: true, attention: sdpa, loss: {kind: standard, upcast: true, keep_logits: false}"
    rest = "clip_grad_norm: true, optimizer: {name: adamw, implementation: fused}, options: {fsdp_version: 2}"
    told = FITS.replace("precision: bf16-mixed", f"precision: bf16-mixed, {stated}, {rest}")
    estimate = judged(told).estimate
    assert estimate is not None
    middle = sum(estimate.needed_interval_bytes) / 2 / 2**30 / 0.95
    result = judged(told.replace("gpu: h100-80gb", card % middle), 0)
    assert result.verdict == "uncertain"
    assert result.settled_by.startswith("run a step: ")
