"""MEM419: steps at which torch's FSDP stops, each as it ended in real processes."""

from __future__ import annotations

import pytest

from tests.rules.plans import found

FLAT = "options: {fsdp_version: 1}"
LORA = "method: lora, lora: {rank: 8, target_modules: [q_proj], dtype: %s}"


@pytest.mark.parametrize(
    ("model", "parallelism", "training", "said"),
    [
        ("t5-3b", "zero_stage: 3", "framework: huggingface, precision: fp16-pure", "no fp16 and fp32 in one group"),
        ("t5-3b", "zero_stage: 3", "framework: huggingface, precision: bf16-pure", ""),
        ("t5-3b", "zero_stage: 3", "framework: huggingface, precision: fp16-mixed", ""),
        ("t5-3b", "zero_stage: 0", "framework: huggingface, precision: fp16-pure", ""),
        ("t5-3b", "zero_stage: 3", "framework: pytorch, precision: fp16-pure", "no fp16 and fp32 in one group"),
        ("t5-3b", "zero_stage: 3", "framework: deepspeed, precision: fp16-mixed", ""),
        ("t5-3b", "zero_stage: 3", f"framework: huggingface, precision: fp16-pure, {FLAT}", "FSDP1 flattens no"),
        (
            "t5-3b",
            "zero_stage: 3",
            f"framework: huggingface, precision: fp16-pure, method: lora, {FLAT}, lora: {{target_modules: [q, v]}}",
            "FSDP1 flattens no",
        ),
        (
            "t5-3b",
            "zero_stage: 3",
            "framework: huggingface, precision: fp16-pure, method: lora, lora: {target_modules: [q, v]}",
            "",
        ),
        ("llama-3.1-8b", "zero_stage: 3", "framework: huggingface, precision: bf16-pure", ""),
    ],
)
def test_two_dtypes_in_one_group(model: str, parallelism: str, training: str, said: str) -> None:
    """Parameters that ``from_pretrained`` keeps in fp32: trained ones under FSDP2, any under FSDP1."""
    messages = found("MEM419", parallelism, training, model=model, defaults="micro_batch_size: 1, sequence_length: 512")
    assert bool(messages) == bool(said)
    assert all(said in each.message for each in messages)


@pytest.mark.parametrize(
    ("training", "stops"),
    [
        (f"framework: pytorch, precision: bf16-mixed, {LORA % 'fp32'}, {FLAT}", True),
        (f"framework: pytorch, precision: fp16-mixed, {LORA % 'bf16'}, {FLAT}", True),
        (f"framework: pytorch, precision: bf16-mixed, {LORA % 'bf16'}, {FLAT}", False),
        (f"framework: pytorch, precision: bf16-pure, {LORA % 'fp32'}, {FLAT}", False),
        (f"framework: pytorch, precision: bf16-mixed, {LORA % 'fp32'}", False),
        (f"framework: huggingface, precision: bf16-mixed, {LORA % 'fp32'}, {FLAT}", False),
    ],
)
def test_rows_and_weights_of_adapters(training: str, stops: bool) -> None:
    """peft casts rows to the dtype in which weights rest; FSDP1 gathers them in another; autocast casts both again."""
    assert bool(found("MEM419", "zero_stage: 3", training)) == stops


@pytest.mark.parametrize(
    ("parallelism", "training", "stops"),
    [
        ("zero_stage: 3", f"framework: pytorch, loss: chunked, {FLAT}", True),
        ("zero_stage: 3, reshard_after_forward: false", f"framework: pytorch, loss: chunked, {FLAT}", False),
        ("zero_stage: 3", "framework: pytorch, loss: chunked", False),
        ("zero_stage: 3", f"framework: pytorch, loss: fused-linear, {FLAT}", False),
        ("zero_stage: 0", f"framework: pytorch, loss: chunked, {FLAT}", False),
    ],
)
def test_heads_behind_a_flattened_root(parallelism: str, training: str, stops: bool) -> None:
    """A chunked loss runs the head when the root has its shard back, but where nothing reshards behind a forward."""
    assert bool(found("MEM419", parallelism, training)) == stops


COPY = "method: lora, lora: {rank: 8, modules_to_save: [lm_head]}"
NEWEST = 'options: {accelerate_version: "1.15"}'


@pytest.mark.parametrize(
    ("model", "training", "stops"),
    [
        ("llama-3.1-8b", "framework: huggingface, optimizer: adafactor", True),
        ("llama-3.1-8b", f"framework: huggingface, optimizer: adafactor, {FLAT}", False),
        ("llama-3.1-8b", "framework: huggingface, optimizer: adamw", False),
        ("llama-3.2-1b", f"framework: huggingface, {COPY}, {NEWEST}", True),
        ("llama-3.2-1b", f"framework: huggingface, {COPY}", False),
        ("llama-3.1-8b", f"framework: huggingface, {COPY}, {NEWEST}", False),
    ],
)
def test_shards_beside_whole_tensors(model: str, training: str, stops: bool) -> None:
    """Adafactor's plain statistics of sharded gradients; a tied matrix in the group of its copy and in another."""
    assert bool(found("MEM419", "zero_stage: 3", training, model=model)) == stops


@pytest.mark.parametrize(
    ("framework", "whose"), [("huggingface", "transformers' Adafactor"), ("pytorch", "torch's Adafactor")]
)
def test_whose_adafactor_stops(framework: str, whose: str) -> None:
    """The Trainer has transformers' own, a loop in plain PyTorch torch's; they stop for different reasons."""
    (finding,) = found("MEM419", "zero_stage: 3", f"framework: {framework}, optimizer: adafactor")
    assert finding.message.startswith(whose)
