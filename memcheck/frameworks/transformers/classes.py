"""transformers' model classes, which several frameworks train: what they build, and how they run."""

from __future__ import annotations

from memcheck.autograd.style import Style
from memcheck.families.registry import FAMILIES
from memcheck.families.wrappers import WRAPPERS
from memcheck.job.families import Families
from memcheck.job.framework import Adapters

TRANSFORMERS = Families(
    (*(name for name in FAMILIES if name not in ("megatron-gpt", "megatron-lm")), *WRAPPERS),
    source="transformers models/*/modeling_*.py",
)
"""Every family and every multimodal model, but for Megatron-LM's own GPT."""

ADAPTERS = Adapters(
    variants=("dropout", "dora", "modules_to_save", "target_parameters", "expert_rank"),
    bases=("nf4", "fp4", "int8", "gptq-4bit", "gptq-8bit", "awq-4bit", "fp8"),
    head=True,
)
"""peft's adapters with every key of ``LoraConfig`` that changes what they hold, over each base that transformers loads.
"""

STYLE = Style(
    folder="transformers",
    layout="batch-first",
    source="transformers 5.23 modeling files and torch 2.13 derivatives.yaml (memcheck.frameworks)",
    dtensor=True,
    modeling_files=True,
)
