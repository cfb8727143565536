"""torchtitan's models and flavors, and the catalog's names for them.

Source: ``torchtitan/models/*/__init__.py`` of torchtitan 0.2.2.
"""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.record import Record


class Flavor(Record):
    """One ``model.name`` and ``model.flavor``."""

    name: str
    flavor: str
    model: str
    """The catalog's model with the same dimensions."""
    overrides: Mapping[str, object] = {}
    """Dimensions in which torchtitan's differs from the catalog's."""
    attention: str = ""
    """The attention kernel that the flavor is tied to; empty: scaled_dot_product_attention."""


_LLAMA = {
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 768,  # 256 * 4 * 2/3, rounded up to a multiple of 256
    "vocab_size": 2048,
    "head_dim": 16,
}
_QWEN = {
    "hidden_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "intermediate_size": 3072,
    "vocab_size": 2048,
    "head_dim": 128,
}
_QWEN_MOE = {**_QWEN, "moe_intermediate_size": 768, "num_experts": 64}
_DEEPSEEK = {
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 1024,
    "moe_intermediate_size": 256,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "vocab_size": 2048,
}
"""What the debug models change."""

FLAVORS = (
    Flavor("llama3", "8B", "llama-3.1-8b"),
    Flavor("llama3", "8B_flex", "llama-3.1-8b", attention="flex"),
    Flavor("llama3", "8B_varlen", "llama-3.1-8b", attention="flash"),
    Flavor("llama3", "70B", "llama-3.1-70b"),
    Flavor("llama3", "405B", "llama-3.1-405b"),
    Flavor("llama2", "7B", "llama-2-7b"),
    Flavor("llama2", "13B", "llama-2-13b"),
    Flavor("llama2", "70B", "llama-2-70b"),
    Flavor("qwen3", "0.6B", "qwen3-0.6b"),
    Flavor("qwen3", "1.7B", "qwen3-1.7b"),
    Flavor("qwen3", "4B", "qwen3-4b"),
    Flavor("qwen3", "8B", "qwen3-8b"),
    Flavor("qwen3", "14B", "qwen3-14b"),
    Flavor("qwen3", "32B", "qwen3-32b"),
    Flavor("qwen3", "30B-A3B", "qwen3-30b-a3b"),
    Flavor("qwen3", "235B-A22B", "qwen3-235b-a22b"),
    Flavor("deepseek_v3", "16B", "deepseek-v2-lite", attention="flex"),
    Flavor("deepseek_v3", "236B", "deepseek-v2", attention="flex"),
    Flavor("deepseek_v3", "671B", "deepseek-v3", attention="flex"),
    Flavor("gpt_oss", "20b", "gpt-oss-20b", attention="flex"),
    Flavor("gpt_oss", "120b", "gpt-oss-120b", attention="flex"),
    *(
        Flavor("llama3", flavor, "llama-3.1-8b", overrides=_LLAMA, attention=attention)
        for flavor, attention in (
            ("debugmodel", ""),
            ("debugmodel_flex_attn", "flex"),
            ("debugmodel_varlen_attn", "flash"),
        )
    ),
    Flavor("qwen3", "debugmodel", "qwen3-0.6b", overrides=_QWEN),
    Flavor("qwen3", "debugmodel_moe", "qwen3-30b-a3b", overrides=_QWEN_MOE),
    Flavor("deepseek_v3", "debugmodel", "deepseek-v2-lite", overrides=_DEEPSEEK),
    Flavor("deepseek_v3", "debugmodel_flex_attn", "deepseek-v2-lite", overrides=_DEEPSEEK, attention="flex"),
)


def find_flavor(name: str, flavor: str) -> Flavor | None:
    """The catalog's counterpart of a torchtitan model."""
    return next((each for each in FLAVORS if (each.name, each.flavor) == (name, flavor)), None)


def flavor_of(model: str, attention: str) -> Flavor | None:
    """The torchtitan model for one of the catalog's, with that attention kernel where there is a choice."""
    found = [each for each in FLAVORS if each.model == model and not each.overrides]
    return next((each for each in found if (each.attention or "sdpa") == attention), found[0] if found else None)
