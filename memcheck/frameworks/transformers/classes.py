"""transformers' model classes, which several frameworks train: what they build, and how they run."""

from __future__ import annotations

from memcheck.autograd.style import Style
from memcheck.families.registry import FAMILIES
from memcheck.families.wrappers import WRAPPERS
from memcheck.job.families import Families

TRANSFORMERS = Families(
    (*(name for name in FAMILIES if name not in ("megatron-gpt", "megatron-lm")), *WRAPPERS),
    source="transformers models/*/modeling_*.py",
)
"""Every family and every multimodal model, but for Megatron-LM's own GPT."""

STYLE = Style(
    folder="transformers",
    layout="batch-first",
    source="transformers 5.23 modeling files and torch 2.13 derivatives.yaml (memcheck.frameworks)",
    dtensor=True,
    whole_table_gradient=True,
    makes_masks=True,
    holds_rows=True,
    head_behind_model=True,
)
