"""`accelerate launch --config_file`: how every trainer's job is split, where its own arguments do not say."""

from __future__ import annotations

from pathlib import Path

import pytest

from memcheck.configs.importing import import_config
from memcheck.configs.types import ReadSetting
from tests.configs.test_trainers import FSDP

SWIFT = (
    "swift/cli/sft.py --model Qwen/Qwen3-8B --tuner_type lora --max_length 1200 --per_device_train_batch_size 2"
    " --torch_dtype bfloat16 --attn_impl flash_attention_2 --packing true\n"
)
FACTORY = (
    "src/train.py --stage sft --do_train --model_name_or_path Qwen/Qwen3-8B --finetuning_type lora --cutoff_len 1200"
    " --per_device_train_batch_size 2 --bf16\n"
)


@pytest.mark.parametrize("line", [SWIFT, FACTORY], ids=["ms-swift", "LLaMA-Factory"])
@pytest.mark.parametrize("command", ["--config_file fsdp.yaml", "--config_file=fsdp.yaml"])
def test_the_launchers_file_says_how_a_job_is_split(tmp_path: Path, line: str, command: str) -> None:
    """GPUs, sharding and the kind of FSDP come from there: without it, every GPU would hold the whole state."""
    (tmp_path / "fsdp.yaml").write_text(FSDP)
    path = tmp_path / "run.sh"
    text = f"accelerate launch {command} {line}"
    found = import_config(str(path), text.encode(), {"hardware.gpu": ReadSetting("h100-80gb", "test")})
    assert not found.problems
    values = {key: each.value for key, each in found.settings.items()}
    assert (values["hardware.gpus_per_node"], values["parallelism.zero_stage"]) == (8, 3)
    assert values["training.options.fsdp_version"] == 2
    assert not [each for each in found.notes if "config_file" in each.message]
