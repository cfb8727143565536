"""A ``ConfigContainer`` of Megatron-Bridge, read as the arguments that it stands for."""

from __future__ import annotations

import pytest

from memcheck.configs.detect import detect
from memcheck.configs.importing import Imported, import_config
from memcheck.configs.types import ReadSetting

CONTAINER = """\
_target_: megatron.bridge.training.config.ConfigContainer
model:
  _target_: megatron.bridge.models.llama.llama_provider.Llama3ModelProvider8B
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: 14336
  num_attention_heads: 32
  num_query_groups: 8
  vocab_size: 128256
  seq_length: 8192
  gated_linear_unit: true
  add_bias_linear: false
  share_embeddings_and_output_weights: false
  normalization: RMSNorm
  position_embedding_type: rope
  tensor_model_parallel_size: 2
  sequence_parallel: true
  init_method_std: null
train: {micro_batch_size: 1, global_batch_size: 128}
optimizer: {optimizer: adam, use_distributed_optimizer: true}
ddp: {use_distributed_optimizer: true}
mixed_precision: bf16_mixed
"""


def read(text: str) -> Imported:
    """The plan of a container on eight GPUs."""
    stated = {"hardware.gpu": "h100-80gb", "hardware.gpus_per_node": 8}
    return import_config(
        "run_config.yaml", text.encode(), {key: ReadSetting(each, "test") for key, each in stated.items()}
    )


def test_a_container_is_read_as_megatrons_arguments() -> None:
    """Each value at its line of the YAML."""
    assert detect("run_config.yaml", CONTAINER) == "megatron"
    found = read(CONTAINER)
    assert found.problems == ()
    said = {key: each.value for key, each in found.settings.items()}
    assert (said["parallelism.tensor"], said["parallelism.zero_stage"]) == (2, 1)
    assert (said["training.micro_batch_size"], said["training.sequence_length"]) == (1, 8192)
    assert said["training.precision"] == "bf16-mixed"
    at = found.settings["training.micro_batch_size"].location
    assert at is not None
    assert at.span.line == 19


@pytest.mark.parametrize("more", ["  some_new_field: 3\n", "  cuda_graph_something: true\n"])
def test_a_field_without_an_argument_is_reported(more: str) -> None:
    """Nothing of the model is left out in silence."""
    found = read(CONTAINER.replace("train: {", f"{more}train: {{"))
    assert any(more.strip().partition(":")[0] in each.message for each in found.notes)


def test_a_field_that_is_null_or_off_says_nothing() -> None:
    """A dump has all fields, most of them unset."""
    assert not any("init_method_std" in each.message for each in read(CONTAINER).notes)


def test_a_precision_that_is_not_known_is_reported() -> None:
    """It is no bf16."""
    found = read(CONTAINER.replace("bf16_mixed", "bf16_with_mxfp8_mixed"))
    assert any("mixed_precision" in each.message for each in found.notes)
