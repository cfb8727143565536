"""open-instruct's configs: whose loop runs, its preferences, and its optimizer."""

from __future__ import annotations

import pytest

from tests.configs.test_trainers import read, values

DPO = """\
model_name_or_path: allenai/OLMo-2-1124-7B-SFT
dataset_mixer: {a/b: 1.0}
max_seq_length: 2048
per_device_train_batch_size: 1
gradient_checkpointing: true
use_lora: false
use_slow_tokenizer: false
learning_rate: 5.0e-7
with_tracking: true
hf_metadata_dataset: a/b
beta: 5
"""


def test_pairs_are_scored_once_before_the_training() -> None:
    """Its DPO holds no second model: the reference's log-probabilities come from a cache."""
    found = read("dpo.yaml", DPO)
    assert not found.problems
    assert values(found)["training.reference"] == "precomputed"
    assert values(found)["training.trainer.name"] == "open-instruct"
    assert values(read("dpo.yaml", f"{DPO}loss_type: simpo\n"))["training.objective.name"] == "simpo"


@pytest.mark.parametrize(
    ("said", "name", "implementation"),
    [
        ("", "adamw", "fused"),
        ("fused_optimizer: false\n", "adamw", "foreach"),
        ("use_8bit_optimizer: true\n", "adamw", "fused"),
        ("dpo_use_paged_optimizer: true\n", "paged-adamw", None),
        ("dpo_use_paged_optimizer: true\nuse_8bit_optimizer: true\n", "paged-adamw-8bit", None),
    ],
)
def test_bitsandbytes_steps_where_the_loop_takes_it(said: str, name: str, implementation: str | None) -> None:
    """Without QLoRA or a paged optimizer, torch's own steps in full width."""
    found = values(read("dpo.yaml", DPO + said))
    assert found["training.optimizer.name"] == name
    assert found.get("training.optimizer.implementation") == implementation


@pytest.mark.parametrize(
    ("script", "refused"),
    [("olmo_core_finetune.py", True), ("dpo.py", True), ("dpo_tune_cache.py", False), ("finetune.py", False)],
)
def test_scripts_of_another_stack_are_refused(script: str, refused: bool) -> None:
    """Some of its scripts build OLMo-core's model in OLMo-core's loop."""
    line = (
        f"accelerate launch open_instruct/{script} --model_name_or_path allenai/OLMo-2-1124-7B-SFT"
        " --max_seq_length 2048 --per_device_train_batch_size 1 --learning_rate 1e-6 --with_tracking\n"
    )
    problems = read("run.sh", line).problems
    assert any("OLMo-core" in each.message for each in problems) == refused


@pytest.mark.parametrize("key", ["num_samples_per_prompt_rollout", "num_unique_prompts_rollout", "vllm_num_engines"])
def test_rollouts_are_told_by_their_keys(key: str) -> None:
    """A YAML of GRPO has a `beta`, too, and is no DPO."""
    assert any("generates" in each.message for each in read("if_code.yaml", f"{DPO}{key}: 8\n").problems)


def test_rollouts_are_told_by_their_script() -> None:
    """`grpo_fast.py` in a file whose name has another word."""
    line = (
        "python open_instruct/grpo_fast.py --model_name_or_path allenai/Llama-3.1-Tulu-3-8B-DPO --beta 0.01"
        " --per_device_train_batch_size 1 --learning_rate 5e-7 --dataset_mixer_list a/b 1.0\n"
    )
    assert any("generates" in each.message for each in read("grpo_fast_dpo.sh", line).problems)


def test_older_keys_of_preferences_are_its_dpo() -> None:
    """`dpo_beta` and `dpo_loss_type` of releases before September 2025."""
    text = DPO.replace("beta: 5", "dpo_beta: 5\ndpo_loss_type: dpo_norm").replace("dataset_mixer", "dataset_mixer_list")
    found = read("olmo2_sft_mix.yaml", text)
    assert not found.problems
    assert values(found)["training.objective.name"] == "dpo"
    assert values(found)["training.trainer.name"] == "open-instruct"
    assert any("wpo" in each.message for each in read("a.yaml", text.replace("dpo_norm", "wpo")).problems)


@pytest.mark.parametrize(
    ("said", "clips"), [("", False), ("clip_grad_norm: 1.0\n", True), ("max_grad_norm: 1.0\n", True)]
)
def test_gradients_are_clipped_on_demand(said: str, clips: bool) -> None:
    """`clip_grad_norm: -1` is the default (finetune.py), and a stated value is not lost."""
    assert values(read("dpo.yaml", DPO + said))["training.clip_grad_norm"] is clips


def test_a_loss_without_a_memory_model_is_refused() -> None:
    """WPO weighs pairs by the scores of their tokens."""
    assert any("wpo" in each.message for each in read("dpo.yaml", f"{DPO}loss_type: wpo\n").problems)
