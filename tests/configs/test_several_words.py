"""Words of a launch that are arguments themselves, and no value of the argument before them."""

from __future__ import annotations

import pytest

from memcheck.configs.importing import import_config
from memcheck.configs.types import ReadSetting

MEGATRON = (
    "--num-layers 4 --hidden-size 256 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128"
    " --micro-batch-size 1 --global-batch-size 8 --bf16"
)
STATED = {
    "hardware.gpu": ReadSetting("h100-80gb", "test"),
    "hardware.gpus_per_node": ReadSetting(8, "test"),
    "model.architecture.vocab_size": ReadSetting(1024, "test"),
}


@pytest.mark.parametrize(
    ("before", "used"),
    [
        (f'GPT_ARGS=" \\\n    {MEGATRON} \\\n    "\n', "$GPT_ARGS"),
        (f"GPT_ARGS=(\n    {MEGATRON}\n)\n", "${GPT_ARGS[@]}"),
        (f"GPT_ARGS=({MEGATRON})\n", '"${GPT_ARGS[@]}"'),
        (f"GPT_ARGS=()\nGPT_ARGS+=(\n    {MEGATRON}\n)\n", '"${GPT_ARGS[@]}"'),
    ],
    ids=["text over lines", "array", "array on a line", "array that grows"],
)
def test_a_switch_in_front_of_a_list_of_arguments_is_on(before: str, used: str) -> None:
    """The list stood as the switch's value, and the ranks kept whole sequences."""
    text = f"{before}torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 4 --sequence-parallel {used}\n"
    found = import_config("pretrain.sh", text.encode(), STATED)
    assert not found.problems
    assert found.settings["parallelism.sequence"].value is True


def test_a_switch_in_front_of_the_callers_arguments_is_on() -> None:
    """`"$@"` is what the script was called with."""
    text = f'torchrun --nproc_per_node 8 pretrain_gpt.py {MEGATRON} --tensor-model-parallel-size 4 --sequence-parallel "$@"\n'
    found = import_config("pretrain.sh", text.encode(), STATED)
    assert not found.problems
    assert found.settings["parallelism.sequence"].value is True


def test_an_array_of_values_is_no_list_of_arguments() -> None:
    """Nothing in it is an argument: it stays the value of the one before it."""
    text = (
        "TARGETS=(q_proj v_proj)\ntorchrun --nproc_per_node 8 finetune.py --model_name_or_path Qwen/Qwen2.5-7B"
        " --per_device_train_batch_size 2 --learning_rate 1e-5 --bf16 True --model_max_length 512 --lora True --lora_r 8"
        ' --lora_dropout 0 --lora_target_modules "${TARGETS[@]}"\n'
    )
    found = import_config("finetune.sh", text.encode(), {"hardware.gpu": ReadSetting("a100-80gb", "test")})
    assert any("TARGETS" in each.message for each in found.problems)


def test_a_comment_sets_no_variable() -> None:
    """A line that is no longer run took the value of one that is."""
    text = (
        "STEPS=8\n# STEPS=$((GLOBAL / (BATCH * DEVICES)))\n"
        "torchrun --nproc_per_node 8 finetune.py --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 2"
        " --gradient_accumulation_steps $STEPS --learning_rate 1e-5 --bf16 True --model_max_length 512\n"
    )
    found = import_config("finetune.sh", text.encode(), {"hardware.gpu": ReadSetting("a100-80gb", "test")})
    assert found.settings["training.gradient_accumulation_steps"].value == 8
