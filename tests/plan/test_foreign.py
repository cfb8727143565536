"""Keys that other tools have, in a plan: each is answered by the plan's key, or by what becomes of it."""

from __future__ import annotations

import pytest

from memcheck.catalog.names import UnknownNameError, find_gpu
from memcheck.edge.json_text import read_own_json
from memcheck.plan.foreign import INSTANCES, KEY, meanings
from memcheck.plan.schema import branches, load_schema
from tests.plan.samples import SMALL, findings

SERVED = (
    "memcheck: 1\nmodel: llama-3.1-8b\nhardware: {gpu: h100-80gb}\ninference: {batch_size: 1, context_length: 4096}\n"
)


def answer(text: str) -> str:
    """The help of the only unknown key."""
    (found,) = [each for each in findings(text) if each.code == "MEM011"]
    return found.help


@pytest.mark.parametrize(
    ("line", "help"),
    [
        ("tensor_parallel_size: 4", "it is written `parallelism.tensor: 4`"),
        ("  load_in_4bit: true", "it is written `training.method: qlora`"),
        ("  mixed_precision_param: bfloat16", "it is written `training.precision: bf16-mixed`"),
        ("  overlap_comm: true", "it is written `training.options.overlap_comm: true`"),
        ("  num_layers: 32", "it is written `model.architecture.num_hidden_layers: 32`"),
        ("  offload: {params: cpu}", "did you mean `parameters`?"),
        ("  offload: {weights: cpu}", "did you mean `parameters`?"),
        (
            "  use_liger_kernel: true",
            "it is written `training.loss: fused-linear`; it is written `training.kernels.liger: true`",
        ),
        ("  lora_alpha: 16", "leave it out: it changes no byte of a GPU (transformers: a number by which PEFT scales "),
        ("hidden_size: 4096", "it is written `model.architecture.hidden_size: 4096`"),
        ("  learning_rate: 1.0e-4", "leave it out: it changes no byte of a GPU (transformers: rates, "),
        ("  padding_free: true", "leave it out: memcheck does not model it, and the estimate is without it (TRL: "),
        ("  gpu_memory_utilization: 0.9", "leave it out: `policy.fail_above` is the share of the GPU "),
        ("world_size: 16", "leave it out: `hardware.nodes` times `hardware.gpus_per_node` is the number of all GPUs"),
        ("instance_type: p4de.24xlarge", "it is written `hardware.gpu: a100-80gb`, with `hardware.gpus_per_node: 8`"),
        ("  fsdp: full_shard auto_wrap", "it is written `parallelism.zero_stage: 3`"),
        ("  max_steps: 500", "it is written `training.steps: 500`"),
        ("accelerators: H100:8", "it is written `hardware.gpu: H100`, with `hardware.gpus_per_node: 8`"),
        ("  fsdp_config: {fsdp_version: 2}", "it is written `parallelism.zero_stage`"),
        ("  fsdp_config.fsdp_version: 2", "it is written `training.options.fsdp_version: 2`"),
        ("  bnb-4bit-quant-type: nf4", "it is written `training.base.held_in: nf4`"),
        ("  load_in_8bit: maybe", "it is written `training.base.held_in`, which has a value for `true` only"),
    ],
)
def test_a_foreign_key_is_answered(line: str, help: str) -> None:
    """With its value in the plan's words where it has one."""
    assert answer(f"{SMALL}{line}\n").startswith(help)


@pytest.mark.parametrize(
    ("line", "help"),
    [
        ("precision: bf16", "it is written `inference.weights: bf16`"),
        ("dtype: bfloat16", "it is written `inference.weights: bf16`"),
        ("dtype: fp8", "it is written `inference.weights: fp8`"),
        ("tensor_parallel_size: 2", "it is written `parallelism.tensor: 2`"),
        ("optim: adamw_torch", "leave it out: it is `training.optimizer` of a training plan"),
    ],
)
def test_a_plan_of_inference_is_answered_with_its_own_keys(line: str, help: str) -> None:
    """It has no `training`, so that none of its keys may be named as the one to write."""
    assert answer(f"{SERVED}{line}\n").startswith(help)
    assert answer(SERVED.replace("{batch_size", f"{{{line}, batch_size")).startswith(help)


def test_a_slip_of_the_finger_is_still_a_slip() -> None:
    """What no tool calls anything so is the nearest key of the plan."""
    assert answer(f"{SMALL}  attnetion: sdpa\n") == "did you mean `attention`?"


def test_every_machine_has_a_gpu_of_the_catalog() -> None:
    """And a number of them."""
    machines = read_own_json(INSTANCES)
    assert len(machines) > 80
    for name, (gpu, count) in machines.items():
        assert name == name.lower()
        assert find_gpu(gpu).name == gpu
        assert 1 <= count <= 16


def test_a_machine_in_place_of_a_gpu_is_named() -> None:
    """`--gpu p5.48xlarge` and `gpu: p5.48xlarge` are one mistake."""
    with pytest.raises(UnknownNameError) as found:
        find_gpu("P5.48xlarge")
    assert found.value.help == "it is a machine with 8 x h100-80gb: name the GPU"
    with pytest.raises(UnknownNameError) as found:
        find_gpu("h200:8")
    assert "name the GPU alone, h200" in found.value.help


def test_answers_name_keys_of_the_plan() -> None:
    """A key that the format does not have would send people in a circle."""
    root = load_schema()
    for name in read_own_json(INSTANCES.replace("instances", "foreign")):
        for each in meanings(name):
            if each.kind == KEY:
                assert _has(root, each.text.split(".")), (name, each.text)


def _has(schema: object, tokens: list[str]) -> bool:
    """Whether the format has a key, or takes any there."""
    root = load_schema()
    if not tokens:
        return True
    mappings = [each for each in branches(schema, root) if each.get("type") == "object"]  # type: ignore[arg-type]
    for each in mappings:
        if tokens[0] in each.get("properties", {}):
            return _has(each["properties"][tokens[0]], tokens[1:])
    return any(each.get("additionalProperties", True) for each in mappings)


SIZES = {
    "hidden_size: 2048": "hidden_size: 2048",
    "d_model: 2048": "hidden_size: 2048",
    "layers: 16": "num_hidden_layers: 16",
    "n_layer: 16": "num_hidden_layers: 16",
    "numLayers: 16": "num_hidden_layers: 16",
    "heads: 32": "num_attention_heads: 32",
    "num_query_groups: 8": "num_key_value_heads: 8",
    "ffn_hidden_size: 8192": "intermediate_size: 8192",
    "d_ff: 8192": "intermediate_size: 8192",
    "vocab: 128256": "vocab_size: 128256",
    "max_position_embeddings: 4096": "max_position_embeddings: 4096",
}


@pytest.mark.parametrize("line", SIZES)
def test_a_model_s_size_is_one_of_its_config(line: str) -> None:
    """Sizes directly under ``model`` are all answered in one family's words, and the missing key shows them together."""
    found = findings(SMALL.replace("model: llama-3.1-8b\n", f"model:\n  {line}\n"))
    (missing,) = [each for each in found if each.code == "MEM012"]
    (unknown,) = [each for each in found if each.code == "MEM011"]
    assert unknown.help == f"it is written `model.architecture.{SIZES[line]}`"
    assert missing.help.startswith(f"write `architecture: {{model_type: llama, {SIZES[line]}}}`")


def test_a_word_that_is_nearly_the_plans_own_key_is_that_key() -> None:
    """torchtitan's section `activation_checkpoint` was answered with one option that stands in it."""
    (found,) = findings(SMALL + "  activation_checkpoint: full\n")
    assert found.help == "did you mean `activation_checkpointing`?"
    assert found.fix is not None


def test_a_word_of_two_tools_is_answered_with_a_key_of_the_plan() -> None:
    """Megatron's `sequence_parallel` is a key; DeepSpeed's, which has no model here, was what every plan was told."""
    assert [each.text for each in meanings("sequence_parallel")] == ["parallelism.sequence"]
