"""A ``ConfigContainer`` of Megatron-Bridge, read as the arguments that it stands for."""

from __future__ import annotations

import pytest

from memcheck.configs.detect import detect
from memcheck.configs.importing import Imported, import_config
from memcheck.configs.key_table import shipped
from memcheck.configs.megatron_bridge import SHIPPED
from memcheck.configs.types import ReadSetting
from memcheck.judge import Gate, check_file

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
    found = read(CONTAINER.replace("bf16_mixed", "bf16_with_nvfp4_mixed"))
    assert any("mixed_precision" in each.message for each in found.notes)


def plan_of(text: str, path: str = "launch.sh") -> Imported:
    """The plan of a launch or a script on eight GPUs."""
    stated = {"hardware.gpu": "h100-80gb", "hardware.gpus_per_node": 8}
    return import_config(path, text.encode(), {key: ReadSetting(each, "test") for key, each in stated.items()})


def test_every_recipe_of_the_table_is_read() -> None:
    """Each name gives a plan with a model of the catalog, and a short name the same as the whole one."""
    names = [each for each in shipped(SHIPPED) if each]
    assert len(names) >= 150
    for name in names[:: len(names) // 12]:
        found = plan_of(f"from megatron.bridge.recipes.all import {name}\ncfg = {name}()\n", "train.py")
        assert found.problems == (), name
        assert "/" in str(found.settings["model.name"].value)


BRIDGE = "torchrun --nproc_per_node=8 scripts/training/run_recipe.py --recipe"
LAUNCHES = {
    f"{BRIDGE} llama3_8b_pretrain_config --dataset mock": {
        "model.name": "meta-llama/Meta-Llama-3-8B",
        "parallelism.context": 2,
        "training.sequence_length": 8192,
        "training.micro_batch_size": 1,
        "training.precision": "bf16-mixed",
        "parallelism.zero_stage": 1,
    },
    f"{BRIDGE} llama3_8b_low_precision_pretrain_config": {"training.precision": "fp8-mixed"},
    f"{BRIDGE} qwen3_8b_sft_config -tp 2 -mb 4 dataset.seq_length=4096 model.recompute_granularity=full": {
        "parallelism.tensor": 2,
        "training.micro_batch_size": 4,
        "training.sequence_length": 4096,
        "training.activation_checkpointing.mode": "full",
    },
    "./scripts/training/train.sh --nodes 2 --gpus-per-node 8 --model qwen3_8b --mode lora peft.dim=16": {
        "training.method": "lora",
        "training.lora.rank": 16,
        "hardware.nodes": 2,
        "training.lora.target_modules": ["linear_qkv", "linear_proj"],
    },
}


@pytest.mark.parametrize("launch", LAUNCHES)
def test_a_launch_names_its_recipe(launch: str) -> None:
    """The recipe's fields, and over them the launch's own options and overrides."""
    found = plan_of(launch)
    assert found.problems == ()
    assert {key: found.settings[key].value for key in LAUNCHES[launch]} == LAUNCHES[launch]
    assert not [each.message for each in found.notes if not each.counted]


REFUSED = {
    f"{BRIDGE} gemma3_1b_pretrain_config": "knows no recipe `gemma3_1b_pretrain_config` of Megatron-Bridge's",
    f"{BRIDGE} llama3_70b_sft_32gpu_h100_bf16_config": "from its benchmarks",
    "torchrun run_recipe.py --model qwen3_8b --mode dora": "`dora` has no memory model here",
    f"{BRIDGE} qwen3_8b_sft_config model.num_layers=4": "changes the model of the recipe",
}


@pytest.mark.parametrize("launch", REFUSED)
def test_what_is_not_known_is_refused_by_its_name(launch: str) -> None:
    """With the way out: the container's own YAML."""
    (result, *_), traces = check_file("launch.sh", launch.encode(), Gate(hardware={"gpu": "h100-80gb"}))
    assert traces == []
    assert result.estimate is None
    assert any(REFUSED[launch] in each.message for each in result.findings)


SCRIPT = """\
import torch
from megatron.bridge import AutoBridge
from megatron.bridge.peft.lora import LoRA
from megatron.bridge.recipes.qwen import qwen3_8b_sft_config
from megatron.bridge.training.mixed_precision import bf16_mixed

cfg = qwen3_8b_sft_config()
cfg.train.micro_batch_size = 4
CHANGE
finetune(config=cfg, forward_step_func=forward_step)
"""
CHANGES: dict[str, dict[str, object]] = {
    "cfg.train.train_iters = 10": {
        "training.micro_batch_size": 4,
        "parallelism.tensor": 4,
        "model.name": "Qwen/Qwen3-8B",
    },
    "cfg.model = AutoBridge.from_hf_pretrained('Qwen/Qwen3-14B').to_megatron_provider()": {
        "model.name": "Qwen/Qwen3-14B",
        "parallelism.tensor": 1,
    },
    "cfg.peft = LoRA(dim=8, target_modules=['linear_qkv'])": {
        "training.method": "lora",
        "training.lora.rank": 8,
        "training.lora.target_modules": ["linear_qkv"],
    },
    "cfg.mixed_precision = bf16_mixed()\ncfg.mixed_precision.grad_reduce_in_fp32 = False": {
        "training.options.grad_reduce_in_bf16": True,
    },
    "cfg.optimizer.use_precision_aware_optimizer = True\ncfg.optimizer.exp_avg_dtype = torch.bfloat16": {
        "training.options.exp_avg_dtype": "bf16",
    },
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_script_changes_its_recipe(change: str) -> None:
    """Fields that are set, and sections that are replaced: nothing of the recipe's own is left in these."""
    found = plan_of(SCRIPT.replace("CHANGE", change), "train.py")
    assert found.problems == ()
    assert {key: found.settings[key].value for key in CHANGES[change]} == CHANGES[change]


def test_a_value_that_the_script_computes_is_asked_for() -> None:
    """It is never the recipe's own."""
    found = plan_of(SCRIPT.replace("CHANGE", "cfg.train.global_batch_size = compute()"), "train.py")
    assert [each.keys for each in found.problems] == [("training.global_batch_size",)]


def test_adapters_of_a_container_are_read() -> None:
    """LoRA is a plan's LoRA; another class is refused."""
    said = read(f"{CONTAINER}peft: {{_target_: megatron.bridge.peft.lora.LoRA, dim: 8, alpha: 16}}\n").settings
    assert (said["training.method"].value, said["training.lora.rank"].value) == ("lora", 8)
    (problem,) = read(f"{CONTAINER}peft: {{_target_: megatron.bridge.peft.dora.DoRA, dim: 8}}\n").problems
    assert "`DoRA`" in problem.message
