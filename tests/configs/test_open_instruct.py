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


def test_a_loss_without_a_memory_model_is_refused() -> None:
    """WPO weighs pairs by the scores of their tokens."""
    assert any("wpo" in each.message for each in read("dpo.yaml", f"{DPO}loss_type: wpo\n").problems)
