"""Configs of jobs whose head scores texts: the plan states that their collators pad, since its default is full rows."""

from __future__ import annotations

import pytest

from tests.configs.test_trainers import AXOLOTL, FACTORY, read, values

REWARD = """\
trl reward --model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name x --max_length 2048 --torch_dtype bfloat16 \\
    --per_device_train_batch_size 4
"""
SWIFT = """\
swift {} --model Qwen/Qwen2.5-0.5B --train_type full --dataset x --torch_dtype bfloat16 \\
    --per_device_train_batch_size 4 --max_length 2048 {}
"""
EXAMPLE = """\
python {}.py --model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name x --do_train --max_seq_length 512 \\
    --per_device_train_batch_size 4 --output_dir out
"""
SCORED = AXOLOTL.replace("sample_packing: true", "sample_packing: false").replace("flash_attention_2", "sdpa")
JOBS = {
    "trl reward": ("reward.sh", REWARD, "reward"),
    "llama-factory rm": ("f.yaml", FACTORY + "stage: rm\n", "reward"),
    "axolotl reward": ("a.yml", SCORED + "reward_model: true\n", "reward"),
    "ms-swift rm": ("s.sh", SWIFT.format("rlhf", "--rlhf_type rm"), "reward"),
    "ms-swift labels": ("s.sh", SWIFT.format("sft", "--task_type seq_cls --num_labels 2"), "classification"),
    "ms-swift embedding": ("s.sh", SWIFT.format("sft", "--task_type embedding"), "embedding"),
    "ms-swift reranker": ("s.sh", SWIFT.format("sft", "--task_type reranker"), "classification"),
    "run_classification": ("r.sh", EXAMPLE.format("run_classification"), "classification"),
    "run_glue": ("r.sh", EXAMPLE.format("run_glue"), "classification"),
    "run_ner": ("r.sh", EXAMPLE.format("run_ner"), "token-classification"),
}


@pytest.mark.parametrize("job", list(JOBS))
def test_scored_rows_are_stated_as_padded(job: str) -> None:
    """Whatever the trainer; nothing in the plan rests on how rows lie by default."""
    name, text, head = JOBS[job]
    found = values(read(name, text))
    assert found.get("training.head", found.get("training.head.kind")) == head
    assert found["training.sequences"] == "padded"


def test_pairs_of_a_single_sample_are_padded() -> None:
    """The chosen and the rejected answer are two rows, also where the micro-batch is one sample."""
    found = values(read("reward.sh", REWARD.replace("batch_size 4", "batch_size 1")))
    assert found["training.micro_batch_size"] == 1
    assert found["training.sequences"] == "padded"


def test_a_scored_row_that_is_alone_is_full() -> None:
    """What pads to the longest of one row pads nothing."""
    found = values(read("r.sh", EXAMPLE.format("run_ner").replace("batch_size 4", "batch_size 1")))
    assert found["training.sequences"] == "unpacked"
