"""LitGPT's keys, and the plan keys for the same things. Read at litgpt 26857050 of June 2026 (``litgpt/finetune/*.py``,
``pretrain.py``, ``args.py``, ``utils.py``, ``config.py``).
"""

from __future__ import annotations

from memcheck.configs.config_file import ConfigFile
from memcheck.configs.evidence import all_keys
from memcheck.configs.key_table import key_table
from memcheck.configs.litgpt_launch import run_of

KEYS = key_table("litgpt")

CHECKPOINT, NAME = "checkpoint_dir", "model_name"
LENGTH, MICRO, TOTAL = "train.max_seq_length", "train.micro_batch_size", "train.global_batch_size"
QUANTIZE = "quantize"
_in_file = all_keys((MICRO, TOTAL, LENGTH), (CHECKPOINT, NAME, "lora_r", QUANTIZE, "initial_checkpoint_dir"))


def recognise(config: ConfigFile) -> str:
    """The key that shows that a config is LitGPT's; empty where none does.

    A file has ``train:`` with a checkpoint's folder or a model's name; a script has a command that trains.
    """
    return _in_file(config) or ("config" if run_of(config) is not None else "")


DROPOUT = "lora_dropout"
TUNED = (1, 16)
"""Micro-batch and total batch, in sequences, of a fine-tuning script that states neither."""
