"""Keys that a framework has nothing for, and keys that a job makes meaningless."""

from __future__ import annotations

import pytest

from tests.rules.plans import found

STEPS = "gradient_accumulation_steps: 4"


@pytest.mark.parametrize("training", ["lora: {dtype: bf16}", "method: lora, lora: {dtype: bf16}"])
def test_what_adapters_are_held_in_anyway_is_no_deviation(training: str) -> None:
    """DeepSpeed holds adapters in the dtype of the model: saying so is right, with adapters and without."""
    assert found("MEM408", "zero_stage: 2", f"framework: deepspeed, precision: bf16-mixed, {training}") == []


@pytest.mark.parametrize(
    ("framework", "parallelism", "training", "key"),
    [
        ("deepspeed", "zero_stage: 3, reshard_after_forward: false", "", "reshard_after_forward"),
        ("megatron", "zero_stage: 3, reshard_after_forward: false", "", "reshard_after_forward"),
        ("litgpt", "zero_stage: 3, reshard_after_forward: false", "", "reshard_after_forward"),
        ("deepspeed", "gradient_sync: last", STEPS, "gradient_sync"),
        ("torchtitan", "zero_stage: 3, gradient_sync: last", STEPS, "gradient_sync"),
        ("megatron", "gradient_as_bucket_view: true", "", "gradient_as_bucket_view"),
        ("torchtitan", "gradient_as_bucket_view: true", "", "gradient_as_bucket_view"),
        ("torchtitan", "zero_stage: 3", "precision: {reduce: bf16}", "reduce"),
        ("deepspeed", "zero_stage: 3", "precision: {reduce: fp32}", "reduce"),
        ("megatron", "", "optimizer: {name: adamw, implementation: foreach}", "implementation"),
        ("megatron", "", "precision: {recipe: bf16-mixed, master: none}", "master"),
        ("megatron", "zero_stage: 3", "precision: {recipe: bf16-mixed, master: none}", "master"),
        ("megatron", "", "precision: {recipe: bf16-mixed, optimizer_states: bf16}", "optimizer_states"),
        ("megatron", "", "precision: {recipe: fp32, params: bf16}", "params"),
        ("deepspeed", "zero_stage: 2", "precision: {recipe: bf16-mixed, gradients: fp32}", "gradients"),
        ("deepspeed", "zero_stage: 2", "precision: {recipe: bf16-mixed, master: none}", "master"),
        ("deepspeed", "zero_stage: 2", "precision: {recipe: bf16-mixed, optimizer_states: bf16}", "optimizer_states"),
        ("deepspeed", "zero_stage: 2", "precision: {recipe: fp32, params: bf16}", "params"),
        ("deepspeed", "zero_stage: 2", "method: lora, lora: {dtype: fp32}", "dtype"),
    ],
)
def test_a_framework_without_the_key(framework: str, parallelism: str, training: str, key: str) -> None:
    """What no line of the framework does is an error at the key, with what it does instead."""
    (finding,) = found("MEM408", parallelism, f"framework: {framework}, {training}".rstrip(", "))
    assert f"has no `{key}`: " in finding.message
    assert finding.pointer.endswith(f"/{key}")
    assert finding.severity == "error"


@pytest.mark.parametrize(
    ("framework", "parallelism", "training"),
    [
        ("deepspeed", "zero_stage: 3, reshard_after_forward: true, gradient_sync: every", STEPS),
        ("megatron", "gradient_as_bucket_view: false", "optimizer: {name: adamw, implementation: fused}"),
        ("torchtitan", "zero_stage: 3, reshard_after_forward: false", "precision: {recipe: bf16-mixed, reduce: fp32}"),
    ],
)
def test_what_a_framework_does_anyway(framework: str, parallelism: str, training: str) -> None:
    """To state what happens in any case is no error."""
    assert not found("MEM408", parallelism, f"framework: {framework}, {training}")


@pytest.mark.parametrize(
    ("parallelism", "training", "gpus", "why"),
    [
        ("zero_stage: 1, reshard_after_forward: false", "", 8, "no parameters are sharded"),
        ("zero_stage: 3, reshard_after_forward: false", "", 1, "no parameters are sharded"),
        ("zero_stage: 3, gradient_sync: last", "", 8, "a step is one micro-batch"),
        ("gradient_sync: last", STEPS, 1, "one replica"),
        ("zero_stage: 3, pipeline: 2, gradient_sync: last", STEPS, 8, "a pipeline reduces with the last"),
        ("zero_stage: 3, gradient_as_bucket_view: true", "", 8, "FSDP reduces without"),
        ("gradient_as_bucket_view: true", "", 1, "one replica"),
        ("pipeline_schedule: gpipe", "", 8, "there is no pipeline"),
        ("", "precision: {reduce: bf16}", 8, "DDP reduces gradients in their own dtype"),
        ("", "precision: {reduce: bf16}", 1, "one replica"),
        ("zero_stage: 3", "precision: {gradients: bf16}", 8, "the dtype of their parameters"),
        ("", "precision: {gradients: bf16}", 8, "autograd makes gradients in the dtype of their parameters"),
        ("", "precision: {gradients: bf16}", 1, "autograd makes gradients in the dtype of their parameters"),
        ("", "precision: {optimizer_states: bf16}", 8, "make states like the parameters"),
        ("", "precision: {recipe: bf16-pure, optimizer_states: bf16}, optimizer: paged-adamw", 8, "states in fp32"),
        ("", "precision: {optimizer_states: bf16}, optimizer: lion", 8, "states in fp32"),
        ("", "precision: {optimizer_states: bf16}, optimizer: adamw-8bit", 8, "a dtype of their own"),
        ("", "method: lora, precision: {gradients: bf16}", 8, "`lora.dtype`"),
        ("", "method: lora, precision: {optimizer_states: bf16}", 8, "`lora.dtype`"),
        ("", "method: lora, precision: {master: fp32}", 8, "their own master copy"),
        ("", "method: lora, freeze: [embed]", 8, "freezes everything but"),
        ("", "expert_imbalance: 1.5", 8, "`expert` is 1"),
    ],
)
def test_a_job_that_does_not_read_the_key(parallelism: str, training: str, gpus: int, why: str) -> None:
    """What the layout or the method makes meaningless is a warning that says what does."""
    (finding,) = found("MEM416", parallelism, f"framework: pytorch, {training}".rstrip(", "), gpus_per_node=gpus)
    assert why in finding.message
    assert finding.severity == "warning"


@pytest.mark.parametrize(
    ("parallelism", "training"),
    [
        ("zero_stage: 3, reshard_after_forward: false", ""),
        ("zero_stage: 3, gradient_sync: last", STEPS),
        ("gradient_sync: last", STEPS),
        ("gradient_as_bucket_view: true", ""),
        ("pipeline: 2, pipeline_schedule: gpipe", STEPS),
        ("zero_stage: 3", "precision: {reduce: bf16}"),
        ("zero_stage: 3", "precision: {gradients: fp32, reduce: fp32}"),
        ("", "method: lora, precision: {optimizer_states: fp32}"),
        ("", "freeze: [embed]"),
    ],
)
def test_a_job_that_reads_the_key(parallelism: str, training: str) -> None:
    """What counts, and what the job would have anyway, is not reported."""
    assert not found("MEM416", parallelism, f"framework: pytorch, {training}".rstrip(", "))


def test_megatron_sums_gradients_in_a_dtype_of_the_plan() -> None:
    """Its buffers are as wide as the parameters, or fp32, and never narrower."""
    assert not found("MEM416", "", "framework: megatron, precision: {recipe: bf16-mixed, gradients: bf16}")
    (finding,) = found("MEM416", "", "framework: megatron, precision: {recipe: fp32, gradients: bf16}")
    assert "as wide as the parameters" in finding.message


def test_serving_reads_no_key_of_a_step() -> None:
    """Sharding and schedules of a training step mean nothing to a plan that serves."""
    serving = "batch_size: 4, context_length: 8192"
    keys = "zero_stage: 3, gradient_sync: last, tensor: 2"
    pointers = [f.pointer for f in found("MEM416", keys, inference=serving)]
    assert pointers == ["/parallelism/zero_stage", "/parallelism/gradient_sync"]


@pytest.mark.parametrize(
    ("model", "training", "why"),
    [
        ("llama-3.1-8b", "loss: {kind: fused-linear, upcast: false}", "piece by piece"),
        ("llama-3.1-8b", "loss: {kind: chunked, keep_logits: true}", "no logits to keep"),
        ("llama-3.1-8b", "activation_checkpointing: {mode: none, every_n_layers: 2}", "nothing is recomputed"),
        ("llama-3.1-8b", "precision: fp32, loss: {kind: standard, upcast: false}", "logits are fp32"),
        ("llama-3.1-8b", "loss: {kind: standard, upcast: false}", ""),
        ("llama-3.1-8b", "activation_checkpointing: {mode: full, every_n_layers: 2}", ""),
    ],
)
def test_details_of_loss_and_recompute(model: str, training: str, why: str) -> None:
    """A detail counts only beside what it is a detail of."""
    messages = [f.message for f in found("MEM416", training=f"framework: pytorch, {training}", model=model)]
    assert bool(messages) == bool(why)
    assert all(why in message for message in messages)


def test_expert_tensor_needs_experts() -> None:
    """A dense model has nothing to divide by `expert_tensor`."""
    assert found("MEM416", "tensor: 2, expert_tensor: 2", "framework: megatron")
    assert not found("MEM416", "tensor: 2, expert_tensor: 2", "framework: megatron", model="mixtral-8x7b")


def test_megatron_keeps_no_logits_and_offloads_no_checkpoints() -> None:
    """Details of loss and recompute that Megatron has nothing for are errors."""
    training = "framework: megatron, loss: {kind: standard, upcast: false, keep_logits: true}"
    training += ", activation_checkpointing: {mode: full, offload: cpu}"
    assert len(found("MEM408", "", training)) == 3
