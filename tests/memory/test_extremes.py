"""Plans of sizes that no job has: each is answered with work that does not grow with them, or refused at its key."""

from __future__ import annotations

import json
from typing import Any

import pytest

from memcheck.autograd.tensor import Tape
from memcheck.frameworks.megatron.stages import MAX_LETTERS, stages_of_layout
from memcheck.frameworks.torch.resident import fullest_share
from memcheck.judge import Gate, check_file
from memcheck.memory.estimate import estimate
from memcheck.memory.unmodelled import NAMES, PIPELINE
from tests.memory.jobs import BIG_GPU, job


def findings(changes: dict[str, Any]) -> list[tuple[str, str]]:
    """Code and pointer of each error of a plan with these values, by dotted key."""
    plan: dict[str, Any] = {
        "memcheck": 1,
        "model": {"name": "llama-3.1-8b", "overrides": {"num_hidden_layers": 1024}},
        "hardware": {"gpu": "h100-80gb", "gpus_per_node": 8, "nodes": 1},
        "parallelism": {},
        "training": {"framework": "megatron", "micro_batch_size": 1, "sequence_length": 2048, "optimizer": "adamw"},
    }
    for name, value in changes.items():
        section, _, key = name.partition(".")
        plan[section][key] = value
    results, traces = check_file("plan.yaml", json.dumps(plan).encode(), Gate())
    assert not traces
    return [(f.code, f.pointer) for f in results[0].findings if f.severity == "error"]


LAYOUT = "/training/options/pipeline_model_parallel_layout"


@pytest.mark.parametrize("text", ["Et|(t|)*99999999999L", "E" + "t*999999999" + "|L", "((((t)*999)*999)*999)*999"])
def test_a_layout_that_repeats_without_end_is_refused_at_its_option(text: str) -> None:
    """Repetitions are counted before they are written out."""
    changes = {
        "parallelism.pipeline": 8,
        "training.options": {"pipeline_model_parallel_layout": text},
        "training.gradient_accumulation_steps": 8,
    }
    assert ("MEM025", LAYOUT) in findings(changes)


def test_the_layout_of_the_deepest_model_is_read() -> None:
    """10,000 stages of a layer each are within the bounds."""
    assert len(stages_of_layout("Et|(t|)*9998tL")) == 10_000
    assert len("t|") * 10_000 < MAX_LETTERS


def test_very_many_prediction_layers_are_refused_at_their_option() -> None:
    """Each would be a unit of its own, with a head."""
    found = findings({"training.options": {"mtp_num_layers": 10**9}})
    assert ("MEM025", "/training/options/mtp_num_layers") in found


def test_more_pipeline_ranks_than_are_walked_are_refused_at_their_key() -> None:
    """Each rank holds another number of micro-batches, so that each would be walked."""
    ranks = 2 * PIPELINE
    changes = {"parallelism.pipeline": ranks, "training.gradient_accumulation_steps": ranks}
    changes |= {"hardware.nodes": ranks // 8}
    assert ("MEM025", "/parallelism/pipeline") in findings(changes)
    assert ("MEM025", "/parallelism/pipeline") not in findings(
        {"parallelism.pipeline": 8, "training.gradient_accumulation_steps": 8}
    )


@pytest.mark.parametrize("count", [NAMES, NAMES + 1])
def test_a_list_of_names_has_a_longest_one(count: int) -> None:
    """One entry more than the limit is refused at the list."""
    changes = {"training.framework": "pytorch", "training.freeze": ["q_proj"] * count}
    assert (("MEM025", "/training/freeze") in findings(changes)) == (count > NAMES)


def test_an_inventory_reads_the_layers_of_a_deep_model_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model ten times as deep replays as many tensors, and its list counts ten times as many."""
    events: list[int] = []
    begin = Tape.mark_peak

    def counted(tape: Tape, label: str) -> None:
        events.append(1)
        begin(tape, label)

    monkeypatch.setattr(Tape, "mark_peak", counted)
    copies, made = [], []
    for layers in (100, 1000):
        events.clear()
        plan = {
            "memcheck": 1,
            "model": {"name": "llama-3.1-8b", "overrides": {"num_hidden_layers": layers}},
            "hardware": {"gpu": "h100-80gb"},
            "training": {"framework": "pytorch", "micro_batch_size": 1, "sequence_length": 3000, "optimizer": "adamw"},
        }
        results, traces = check_file("plan.yaml", json.dumps(plan).encode(), Gate(inventory=True))
        assert not traces
        answer = results[0].estimate
        assert answer is not None
        copies.append({group.name: group.copies for group in answer.ranks[0].largest})
        made.append(len(events))
    assert copies[0]["mlp.down_proj.weight"] * 10 == copies[1]["mlp.down_proj.weight"]
    assert made[1] <= made[0]


def test_dealing_out_states_does_not_bring_them_back_from_the_host() -> None:
    """torch.optim makes states where the parameter is (``zeros_like``): ZeRO-1 divides none on the GPU."""
    found = job(parameter_offload="cpu")
    for stage in (0, 1):
        layout = found.layout._replace(data=8, zero_stage=stage, shard_group=8 if stage else 1)
        answer = estimate(found._replace(layout=layout), BIG_GPU)
        assert not answer.components_bytes.get("optimizer_states")


def test_ranks_without_a_tensor_are_not_listed() -> None:
    """Whole tensors dealt out to 2**36 ranks: those beyond the number of tensors get none, and none is made."""
    found = job()
    wide = found._replace(layout=found.layout._replace(data=2**36, shard_group=2**36))
    assert fullest_share(wide, [])[1:] == ([], 0)
