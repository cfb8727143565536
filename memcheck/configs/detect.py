"""Which framework a config belongs to, from its name and its keys."""

from __future__ import annotations

import re

from memcheck.configs.config_file import located
from memcheck.configs.types import ConfigError
from memcheck.finding import Location, Span

_MARKS = (
    ("accelerate", r"^distributed_type\s*:"),
    ("megatron", r"^MODEL_ARGS\s*:"),
    ("megatron", r"--(num-layers|hidden-size|micro-batch-size|tensor-model-parallel-size)\b"),
    ("torchtitan", r"^\[(job|parallelism|activation_checkpoint|training)\]"),
    ("deepspeed", r'"(zero_optimization|train_batch_size|train_micro_batch_size_per_gpu)"\s*:'),
    ("deepspeed", r'"(gradient_accumulation_steps|fp16|bf16|steps_per_print)"\s*:'),
)
"""A line that only configs of one framework have; the first that is found decides."""

_UNREAD = (
    ("an Axolotl config", r"^base_model\s*:"),
    ("a NeMo AutoModel recipe", r"^\s*_target_\s*:\s*nemo"),
    ("a NeMo AutoModel recipe", r"^step_scheduler\s*:"),
    ("a torchtune recipe", r"^\s*_component_\s*:"),
    ("a LLaMA-Factory config", r"^(finetuning_type|cutoff_len)\s*:"),
    ("a nanotron config", r"^tokens\s*:\s*$"),
    ("a file of TrainingArguments", r"^(per_device_train_batch_size|model_name_or_path)\s*:"),
    ("a Hugging Face config.json, which a plan names as `model: {config: FILE}`", r'^\s*"model_type"\s*:'),
    ("a plan already", r"^memcheck\s*:"),
)
"""Kinds of files that memcheck knows and does not read."""


def detect(path: str, text: str) -> str:
    """The name of the format.

    Raises:
        ConfigError: another framework's config, or nobody's.
    """
    for kind, mark in _UNREAD:
        found = re.search(mark, text, re.MULTILINE)
        if found is not None and not (kind.startswith("a Hugging") and '"zero_optimization"' in text):
            line = text.count("\n", 0, found.end())
            raise located(Location(path, Span(line + 1, 1, line + 1, 2)), f"this is {kind}", HELP)
    if path.endswith(".toml"):
        return "torchtitan"
    for name, mark in _MARKS:
        if re.search(mark, text, re.MULTILINE):
            return name
    if path.endswith(".json"):
        return "deepspeed"
    raise ConfigError(f"{path}: this is no config that memcheck knows", HELP)


HELP = "memcheck reads DeepSpeed JSON, Accelerate YAML, torchtitan TOML and Megatron-LM arguments; --from says which"
