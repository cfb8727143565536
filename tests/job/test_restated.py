"""Options that say what a key of the plan says: they decide where the key is left out, and are compared where it is not."""

from __future__ import annotations

import pytest

from memcheck.config.find import Gate
from memcheck.judge import check_file
from memcheck.rules.result import PlanResult

PLAN = """memcheck: 1
model: mixtral-8x7b
hardware: {{gpu: h100-80gb, gpus_per_node: 8, nodes: 8}}
parallelism: {{tensor: 2, pipeline: 4, expert: 8{layout}}}
training:
  framework: megatron
  micro_batch_size: 1
  sequence_length: 4096
  global_batch_size: 128
{training}
"""
TITAN = """memcheck: 1
model: llama-3.1-8b
hardware: {{gpu: h100-80gb, gpus_per_node: 8}}
parallelism: {{zero_stage: 3{layout}}}
training:
  framework: torchtitan
  micro_batch_size: 1
  sequence_length: 8192
{training}
"""


def judged(text: str, layout: str = "", training: str = "") -> PlanResult:
    """One plan, with more keys of its layout and of its training."""
    lines = "\n".join(f"  {line}" for line in training.splitlines())
    (result,), traces = check_file("plan.yaml", text.format(layout=layout, training=lines).encode(), Gate())
    assert not traces
    return result


def need(result: PlanResult) -> int:
    """What the plan is said to need."""
    assert result.estimate is not None, result.findings
    return result.estimate.needed_bytes


SAME = [
    (PLAN, "use_distributed_optimizer: true", ", zero_stage: 1", "", "parallelism.zero_stage"),
    (PLAN, "use_distributed_optimizer: false", ", zero_stage: 0", "", "parallelism.zero_stage"),
    (PLAN, "use_megatron_fsdp: true", ", zero_stage: 3", "", "parallelism.zero_stage"),
    (PLAN, "data_parallel_sharding_strategy: optim_grads", ", zero_stage: 2", "", "parallelism.zero_stage"),
    (
        PLAN,
        "recompute_granularity: full",
        "",
        "activation_checkpointing: full",
        "training.activation_checkpointing.mode",
    ),
    (
        TITAN,
        "fsdp_reshard_after_forward: never",
        ", reshard_after_forward: false",
        "",
        "parallelism.reshard_after_forward",
    ),
    (TITAN, "enable_cpu_offload: true", "", "offload: {parameters: cpu}", "training.offload.parameters"),
    (
        TITAN,
        "selective_ac_option: op",
        "",
        "activation_checkpointing: selective",
        "training.activation_checkpointing.mode",
    ),
]


@pytest.mark.parametrize(("text", "option", "layout", "training", "key"), SAME, ids=[row[1] for row in SAME])
def test_an_option_decides_for_a_key_that_is_left_out(
    text: str, option: str, layout: str, training: str, key: str
) -> None:
    """The plan needs what it needs with the key, and the assumption names the option; nothing contradicts."""
    by_option = judged(text, training=f"options: {{{option}}}")
    assert [each.code for each in by_option.findings if each.severity == "error" and not each.about_memory] == []
    assert need(by_option) == need(judged(text, layout, f"options: {{{option}}}\n{training}"))
    (why,) = (each.why for each in by_option.assumptions if each.key == key)
    assert why == f"options.{option.partition(':')[0]}"


@pytest.mark.parametrize(
    ("layout", "option"),
    [
        (", zero_stage: 0", "use_distributed_optimizer: true"),
        (", zero_stage: 1", "use_distributed_optimizer: false"),
        (", zero_stage: 1", "use_megatron_fsdp: true"),
        ("", "overlap_param_gather: true"),
        ("", "use_precision_aware_optimizer: true"),
    ],
)
def test_a_key_that_says_something_else_is_an_error(layout: str, option: str) -> None:
    """It is found at the option, and names the key."""
    result = judged(PLAN, layout, f"options: {{{option}}}")
    (found,) = (each for each in result.findings if each.code == "MEM409")
    assert found.pointer == f"/training/options/{option.partition(':')[0]}"
    assert "`parallelism.zero_stage`" in found.help
    assert result.status == "failed"


def test_the_word_of_another_tool_is_answered_with_the_key() -> None:
    """NeMo's ``distributed_optimizer`` is no option of Megatron-LM: the help writes the plan's key."""
    result = judged(PLAN, training="options: {distributed_optimizer: true}")
    (found,) = (each for each in result.findings if each.code == "MEM404")
    assert "`parallelism.zero_stage: 1`" in found.help
