"""transformers' model classes, which several frameworks train: what they build, and how they run."""

from __future__ import annotations

from memcheck.autograd.context import Style
from memcheck.families.registry import FAMILIES, WRAPPERS
from memcheck.job.framework import Adapters
from memcheck.job.lookup import Families

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

_EAGER_ALONE = ("sdpa", "flash", "flex")
MISSING_ATTENTIONS = {
    **dict.fromkeys(("bloom", "codegen", "deberta", "deberta-v2", "deepseek_v4", "mpnet", "mpt"), _EAGER_ALONE),
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa", "minimax_m3_vl_text"), ("flash", "flex")),
    **dict.fromkeys(("gpt_neo", "gptj", "mimo_v2_flash"), ("sdpa", "flex")),
    **dict.fromkeys(("gemma2", "gpt_oss", "granite_swa", "granitemoe_swa", "t5gemma", "vaultgemma"), ("sdpa",)),
    **dict.fromkeys(("llama4_text", "mt5", "t5", "umt5"), ("flash",)),
    **dict.fromkeys(
        (
            *("aria_text", "bailing_hybrid", "bamba", "falcon", "falcon_h1", "glm4v_text", "glm_ocr_text", "gpt-sw3"),
            *("gpt2", "gpt_bigcode", "jamba", "kimi_linear", "olmo_hybrid", "olmoe", "qwen3_5_moe_text"),
            *("qwen3_5_text", "qwen3_next", "stablelm"),
        ),
        ("flex",),
    ),
}
"""Kinds of attention that a model type's class does not have, at which ``from_pretrained`` stops where they are stated.

Source: transformers 5.23, ``_supports_sdpa``, ``_supports_flash_attn`` and ``_supports_flex_attn`` of each class.
"""
