"""Errors that say the way out: what people write, and what they are told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from memcheck.judge import Gate, check_file
from tests.rules.plans import found

if TYPE_CHECKING:
    from pathlib import Path

    from memcheck.rules.result import PlanResult

PLAN = """memcheck: 1
model: {model}
hardware: {{{hardware}}}
parallelism: {{{parallelism}}}
training: {{{training}}}
"""


def judged(
    training: str,
    model: str = "llama-3.1-8b",
    hardware: str = "gpu: h100-80gb, gpus_per_node: 8",
    parallelism: str = "",
) -> PlanResult:
    """The verdict on one plan, with a micro-batch of one sequence of 4096 tokens unless stated otherwise."""
    for key, value in (("micro_batch_size", 1), ("sequence_length", 4096)):
        training += f", {key}: {value}" if key not in training else ""
    text = PLAN.format(model=model, hardware=hardware, parallelism=parallelism, training=training)
    (result,), traces = check_file("plan.yaml", text.encode(), Gate())
    assert not traces
    return result


def errors(result: PlanResult) -> list[tuple[str, str]]:
    """Code and help of every error that is not about an amount of memory."""
    return [(each.code, each.help) for each in result.findings if each.severity == "error" and not each.about_memory]


def test_a_tensor_degree_that_fits_nothing_is_one_error() -> None:
    """TP 3 divides neither GPUs nor heads nor tokens: the first is the error, the others are notes of it."""
    result = judged("framework: torchtitan", parallelism="tensor: 3")
    (error,) = [each for each in result.findings if each.severity == "error"]
    assert error.code == "MEM201"
    notes = [label for label, _ in error.related]
    assert [label[:6] for label in notes if label.startswith("MEM")] == ["MEM202", "MEM203", "MEM210"]
    assert error.help == "with everything else as it is, `tensor: 1`, `tensor: 2`, `tensor: 4` or `tensor: 8` would do"


@pytest.mark.parametrize(
    ("parallelism", "help"),
    [
        ("tensor: 4, data: 4", "write `data: 2`, or leave `data` out"),
        ("tensor: 8, data: 2", "write `data: 1`, or leave `data` out"),
        ("tensor: 3, data: 2", "write degrees that divide the number of GPUs, or leave `data` out"),
    ],
)
def test_a_wrong_data_degree_is_told_the_right_one(parallelism: str, help: str) -> None:
    """The replicas that the GPUs leave, where they leave any."""
    (finding,) = found("MEM201", parallelism, "framework: megatron")
    assert finding.help == help


def test_the_degrees_that_are_named_start() -> None:
    """Each value that the joined error offers is one with which no such error is left."""
    for degree in (1, 2, 4, 8):
        result = judged("framework: torchtitan", parallelism=f"tensor: {degree}")
        assert errors(result) == []


def test_two_mistakes_stay_two_errors() -> None:
    """A tensor degree and a number of stages that are both wrong are two things to mend."""
    result = judged("framework: megatron", model="qwen2.5-7b", parallelism="tensor: 8, pipeline: 3, data: 1")
    assert {code for code, _ in errors(result)} >= {"MEM202", "MEM206"}


def test_key_value_heads_name_every_degree_that_divides_them() -> None:
    """Eight heads can be split over 4 and 8 ranks as well, whatever degree was tried."""
    result = judged("framework: torchtitan", parallelism="tensor: 3", hardware="gpu: h100-80gb, gpus_per_node: 24")
    assert [code for code, _ in errors(result)] == ["MEM202"]
    (error,) = [each for each in result.findings if each.severity == "error"]
    assert error.help == "with everything else as it is, `tensor: 1`, `tensor: 2`, `tensor: 4` or `tensor: 8` would do"


def test_a_config_of_another_framework_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A DeepSpeed config beside `framework: huggingface`: the disagreement is the error, its options are a note."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ds.json").write_text(
        '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3, '
        '"overlap_comm": true, "reduce_bucket_size": 5e8, "stage3_prefetch_bucket_size": 5000000}}',
        encoding="utf-8",
    )
    plan = b"""memcheck: 1
source: {deepspeed: ./ds.json}
model: llama-3.1-8b
hardware: {gpu: h100-80gb, gpus_per_node: 8}
training: {framework: huggingface, sequence_length: 4096}
"""
    (result,), _ = check_file("plan.yaml", plan, Gate())
    assert [code for code, _ in errors(result)] == ["MEM501"]
    (note,) = [each for each in result.findings if each.code == "MEM404"]
    assert note.severity == "info"
    assert "they are deepspeed's" in note.message


def test_options_of_another_framework_are_one_error() -> None:
    """Several options that one other framework has are a wrong framework; a single one stays itself."""
    options = "options: {reduce_bucket_size: 5000000, overlap_comm: true, no_such_thing: 1}"
    found = errors(judged(f"framework: huggingface, {options}"))
    assert [code for code, _ in found] == ["MEM404", "MEM404"]
    assert found[0][1] == "write `framework: deepspeed`, or leave them out"
    assert errors(judged("framework: huggingface, options: {overlap_comm: true}")) == [
        ("MEM404", "it is an option of deepspeed")
    ]


def test_zero_2_of_the_trainer_is_deepspeed() -> None:
    """The Trainer runs ZeRO-2 through DeepSpeed, and FSDP has a name for it, too."""
    ((code, help),) = errors(judged("framework: huggingface", parallelism="zero_stage: 2"))
    assert code == "MEM215"
    assert "huggingface reaches it through DeepSpeed, `framework: deepspeed`" in help
    assert "SHARD_GRAD_OP is `zero_stage: 3` with `reshard_after_forward: false`" in help


def test_layers_that_no_number_of_stages_divides() -> None:
    """61 layers on 16 stages: the way people go is shorter ends, and the plan with them is judged."""
    of = {"model": "deepseek-v3", "hardware": "gpu: h200, gpus_per_node: 8, nodes: 32"}
    layout = "pipeline: 16, expert: 16, zero_stage: 1"
    ((code, help),) = errors(judged("framework: megatron, activation_checkpointing: full", parallelism=layout, **of))
    assert code == "MEM206"
    ends = "decoder_first_pipeline_num_layers: 3, decoder_last_pipeline_num_layers: 2"
    assert f"write `options: {{{ends}}}`, 4 on each stage between" in help
    mended = f"framework: megatron, activation_checkpointing: full, options: {{{ends}}}"
    assert errors(judged(mended, parallelism=layout, **of)) == []


@pytest.mark.parametrize(
    ("training", "help"),
    [
        ("framework: pytorch, activation_checkpointing: true", "write `full`, or `selective` for less of it"),
        ("framework: pytorch, activation_checkpointing: false", "write `none`"),
        ("framework: pytorch, micro_batch_size: 0", "the least is `1`"),
        ("framework: unsloth", "Unsloth runs transformers' Trainer"),
        ("framework: trl", "write `huggingface`"),
        ("framework: accelerate", "`huggingface` for the Trainer, `pytorch` for your own loop"),
        ("framework: fsdp", "FSDP is `parallelism.zero_stage: 3`"),
        ("framework: verl", "write `pytorch` or `megatron`"),
    ],
)
def test_words_of_other_tools_are_answered(training: str, help: str) -> None:
    """A value that the format does not know says what to write for what was meant."""
    ((_, said),) = errors(judged(training))
    assert help in said


@pytest.mark.parametrize("gpu", ["8xH100", "8 x h100", "H100:8", "h100x8"])
def test_a_number_in_a_gpus_name_is_pulled_out(gpu: str) -> None:
    """The number of GPUs has a key of its own."""
    ((code, help),) = errors(judged("framework: pytorch", hardware=f'gpu: "{gpu}"'))
    assert (code, help) == ("MEM021", "write `gpu: h100-80gb` and the number as `gpus_per_node: 8`")


def test_a_made_up_memory_of_a_shared_name_is_found() -> None:
    """`a100` with a memory is the card that is nearest to it, and no more than that card has."""
    found = errors(judged("framework: pytorch", hardware="gpu: {name: a100, memory_gib: 100000}"))
    assert ("MEM601", "leave `memory_gib` out, or name the GPU that has it") in found


QLORA_70B = "framework: huggingface, method: qlora, sequence_length: 512, activation_checkpointing: full"
TWO_CARDS = {"model": "llama-3.1-70b", "hardware": "gpu: rtx-4090, gpus_per_node: 2", "parallelism": "zero_stage: 3"}
OFFLOADED = "offload: {parameters: cpu}, optimizer: {offload: cpu}"


def test_a_loader_that_keeps_a_quantised_model_on_the_host() -> None:
    """QLoRA of a 70B model on two cards of 24 GB, as it is published: only the way it is loaded needs to be said."""
    whole = judged(f"{QLORA_70B}, {OFFLOADED}", **TWO_CARDS)
    assert whole.estimate is not None
    assert (whole.status, whole.estimate.instant) == ("failed", "load")
    host = {}
    for place in ("rank0", "host"):
        result = judged(f"{QLORA_70B}, {OFFLOADED}, initialization: {place}", **TWO_CARDS)
        assert (result.status, errors(result)) == ("passed", [])
        assert result.estimate is not None
        host[place] = {each.name: each.bytes for each in result.estimate.host_moments}["load"]
    assert host["host"] == 2 * host["rank0"]
    assert host["rank0"] == whole.estimate.components_bytes["parameters"]
