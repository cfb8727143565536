"""What the writers compute, and what they admit that they cannot say."""

from __future__ import annotations

import json

import pytest
import yaml

from memcheck.configs.formats import WRITTEN
from memcheck.plan.places import Document
from memcheck.plan.read import load_documents
from tests.configs.jobs import made, written

PLAN = "memcheck: 1\nmodel: {model}\nhardware: {{gpu: h100-80gb, gpus_per_node: 8}}\n{rest}\n"


def plan(rest: str, model: str = "llama-3.1-8b") -> Document:
    """A plan on eight GPUs."""
    (document,) = load_documents("plan.yaml", PLAN.format(model=model, rest=rest).encode())
    return document


def lost(document: Document, format: str) -> list[str]:
    """The keys that a format cannot say."""
    return [notice.key for notice in written(document, format).lost]


def test_deepspeed_batches_agree() -> None:
    """The engine refuses a total that is not micro-batch x accumulation x data: the total is computed."""
    config = json.loads(written(made("deepspeed-zero2-buckets"), "deepspeed").text)
    assert config["train_batch_size"] == 2 * 4 * 8
    assert config["fp16"] == {"enabled": True}
    assert config["zero_optimization"]["overlap_comm"] is True


def test_removed_deepspeed_keys_are_not_written() -> None:
    """The targeted release refuses MiCS: a plan that asks for it is told."""
    document = plan(
        "parallelism: {zero_stage: 3}\ntraining: {framework: deepspeed, micro_batch_size: 1, sequence_length: 1024, "
        "options: {mics_shard_size: 4}}"
    )
    assert lost(document, "deepspeed") == ["training.options.mics_shard_size"]
    assert "mics" not in written(document, "deepspeed").text


def test_accelerate_groups_multiply_to_the_processes() -> None:
    """replicate x shard x tensor x context is the number of processes, which Accelerate checks."""
    config = yaml.safe_load(written(made("fsdp-hybrid-tp"), "accelerate").text)
    sizes = config["parallelism_config"]
    degrees = [sizes[f"parallelism_config_{name}_size"] for name in ("dp_replicate", "dp_shard", "tp", "cp")]
    assert degrees == [4, 4, 2, 1]
    assert config["num_processes"] == 32


@pytest.mark.parametrize(
    ("checkpoint", "word"), [("full", "FULL_STATE_DICT"), ("sharded", "SHARDED_STATE_DICT"), ("", "FULL_STATE_DICT")]
)
def test_accelerate_is_told_how_the_state_is_saved(checkpoint: str, word: str) -> None:
    """The Trainer's default is the full state dict; the plan's word for it is written and read back."""
    stated = f", checkpoint: {checkpoint}" if checkpoint else ""
    training = "framework: huggingface, micro_batch_size: 1, sequence_length: 1024, precision: bf16-mixed"
    document = plan(f"parallelism: {{zero_stage: 3}}\ntraining: {{{training}{stated}}}")
    text = written(document, "accelerate").text
    assert yaml.safe_load(text)["fsdp_config"]["fsdp_state_dict_type"] == word
    assert "training.checkpoint.state_dict" not in lost(document, "accelerate")


def test_torchtitan_is_told_how_its_checkpoints_are_saved() -> None:
    """A checkpoint that waits on the host is written with the switch that makes one, and read back."""
    training = "framework: torchtitan, micro_batch_size: 1, sequence_length: 1024, precision: bf16-mixed"
    stated = "checkpoint: {state_dict: sharded, asynchronous: true}"
    document = plan(f"parallelism: {{zero_stage: 3}}\ntraining: {{{training}, {stated}}}")
    text = written(document, "torchtitan").text
    assert lost(document, "torchtitan") == []
    assert "enable = true" in text
    assert 'async_mode = "async"' in text


@pytest.mark.parametrize(
    ("format", "rest", "keys"),
    [
        ("torchtitan", "framework: torchtitan, optimizer: muon", ["training.optimizer.name"]),
        (
            "torchtitan",
            "framework: torchtitan, loss: {kind: chunked, chunks: 4}",
            ["training.loss.kind", "training.loss.chunks"],
        ),
        ("torchtitan", "framework: torchtitan, freeze: [embed]", ["training.freeze"]),
        ("megatron", "framework: megatron, compile: true", ["training.compile"]),
        (
            "megatron",
            "framework: megatron, activation_checkpointing: {mode: full, every_n_layers: 2}",
            ["training.activation_checkpointing.every_n_layers"],
        ),
        (
            "megatron",
            "framework: megatron, precision: {recipe: bf16-mixed, gradients: bf16}",
            ["training.precision.gradients"],
        ),
        (
            "accelerate",
            "framework: huggingface, activation_checkpointing: {mode: full, offload: cpu}",
            ["training.activation_checkpointing.offload"],
        ),
        ("accelerate", "framework: pytorch", ["training.framework"]),
        ("deepspeed", "framework: torchtitan", ["training.framework"]),
    ],
)
def test_what_a_format_cannot_say_is_listed(format: str, rest: str, keys: list[str]) -> None:
    """Nothing of a plan is dropped in silence, a plan priced for another framework included."""
    document = plan(f"parallelism: {{zero_stage: 0}}\ntraining: {{micro_batch_size: 1, sequence_length: 1024, {rest}}}")
    found = lost(document, format)
    assert set(keys) <= set(found), found


@pytest.mark.parametrize(
    ("model", "what"),
    [("gemma-2-9b", "soft-capping"), ("gpt-neox-20b", "parallel attention"), ("bloom-1b1", "ALiBi")],
)
def test_megatron_names_what_it_lacks(model: str, what: str) -> None:
    """A model whose parts Megatron's GPT does not have is written as closely as possible, and the parts are named."""
    document = plan("training: {framework: megatron, micro_batch_size: 1, sequence_length: 1024}", model)
    assert any(what in notice.message for notice in written(document, "megatron").lost)


def test_models_without_a_flavor_are_named() -> None:
    """torchtitan knows its own models only."""
    document = plan("training: {framework: torchtitan, micro_batch_size: 1, sequence_length: 1024}", "mistral-7b")
    assert lost(document, "torchtitan") == ["model"]


@pytest.mark.parametrize("format", [name for name in WRITTEN if name != "deepspeed"])
def test_notices_stand_in_the_config(format: str) -> None:
    """Formats with comments carry what they do not say; JSON has none."""
    document = plan("training: {framework: huggingface, micro_batch_size: 1, sequence_length: 1024, freeze: [embed]}")
    config = written(document, format)
    head = config.text[: config.text.index("\n\n")]
    assert all(notice.key in head for notice in config.notices)
    assert "plan.yaml" in head
