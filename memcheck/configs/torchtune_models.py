"""torchtune's model builders, and the catalog's models that they build.

Source: ``torchtune/models/*/_model_builders.py`` at bd2a0fc7c.
"""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.record import Record

MODELS = "torchtune.models."

CATALOG: dict[str, str] = {
    "gemma_2b": "gemma-2b",
    "gemma_7b": "gemma-7b",
    "gemma2_2b": "gemma-2-2b",
    "gemma2_9b": "gemma-2-9b",
    "gemma2_27b": "gemma-2-27b",
    "llama2_7b": "llama-2-7b",
    "llama2_13b": "llama-2-13b",
    "llama2_70b": "llama-2-70b",
    "llama3_8b": "llama-3-8b",
    "llama3_70b": "llama-3-70b",
    "llama3_1_8b": "llama-3.1-8b",
    "llama3_1_70b": "llama-3.1-70b",
    "llama3_1_405b": "llama-3.1-405b",
    "llama3_2_1b": "llama-3.2-1b",
    "llama3_2_3b": "llama-3.2-3b",
    "llama3_3_70b": "llama-3.3-70b",
    "mistral_7b": "mistral-7b-v0.1",
    "phi3_mini": "phi-3-mini",
    "phi4_14b": "phi-4",
    "qwen2_0_5b": "qwen2-0.5b",
    "qwen2_1_5b": "qwen2-1.5b",
    "qwen2_7b": "qwen2-7b",
    "qwen2_5_0_5b": "qwen2.5-0.5b",
    "qwen2_5_1_5b": "qwen2.5-1.5b",
    "qwen2_5_3b": "qwen2.5-3b",
    "qwen2_5_7b": "qwen2.5-7b",
    "qwen2_5_14b": "qwen2.5-14b",
    "qwen2_5_32b": "qwen2.5-32b",
    "qwen2_5_72b": "qwen2.5-72b",
    "qwen3_0_6b": "qwen3-0.6b",
    "qwen3_1_7b": "qwen3-1.7b",
    "qwen3_4b": "qwen3-4b",
    "qwen3_8b": "qwen3-8b",
    "qwen3_14b": "qwen3-14b",
    "qwen3_32b": "qwen3-32b",
    "smollm2_135m": "smollm2-135m",
    "smollm2_360m": "smollm2-360m",
    "smollm2_1_7b": "smollm2-1.7b",
}
"""Builders without their prefix (``lora_``, ``qlora_``) and their suffix (``_base``, ``_instruct``), whose models have
the same tensors.
"""

GENERAL = ("llama2.llama2", "llama3.llama3", "mistral.mistral")
"""Builders of any size, whose arguments are the model's dimensions; and those with ``lora_`` in front."""

OTHERS: dict[str, str] = {
    "vision": "a model of pictures, whose number and size are not in the config",
    "llama4": "Llama 4 with its vision tower, which has no memory model here under torchtune",
    "reward": "a reward model, which has no memory model here under torchtune",
    "classifier": "a classifier, which has no memory model here under torchtune",
    "clip": "an encoder of pictures, which has no memory model here",
    "flux": "an image generator, which has no memory model here",
    "t5": "an encoder of text, which has no memory model here under torchtune",
}
"""Parts of a builder's path that say it builds no decoder of text, and what it is."""


class Builder(Record):
    """One ``model._component_``."""

    name: str
    """The name of the builder function in torchtune."""
    model: str
    """The catalog's model; empty for a builder of any size, and for one that is not known."""
    adapter: str = ""
    """``lora`` | ``qlora``; empty: the whole model is trained."""
    general: bool = False
    other: str = ""
    """What the builder makes instead of a text decoder; empty for a text decoder."""


def builder_of(component: str) -> Builder:
    """What a component of torchtune builds."""
    path = component.removeprefix(MODELS)
    folder, _, name = path.rpartition(".")
    adapter = next((each for each in ("qlora", "lora") if name.startswith(f"{each}_")), "")
    plain = name.removeprefix(f"{adapter}_") if adapter else name
    if not component.startswith("torchtune."):
        return Builder(name, "", adapter)
    other = next((what for part, what in OTHERS.items() if part in path), "")
    general = f"{folder}.{plain}" in GENERAL
    model = CATALOG.get(plain.removesuffix("_base").removesuffix("_instruct"), "")
    return Builder(name=name, model=model, adapter=adapter, general=general, other=other)


DIMENSIONS: Mapping[str, str] = {
    "vocab_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "embed_dim": "hidden_size",
    "intermediate_dim": "intermediate_size",
}
"""Arguments of the builders of any size, and what a Hugging Face config calls them."""


def default_width(hidden: int) -> int:
    """Llama 2's ``scale_hidden_dim_for_mlp``: two thirds of four times the width, up to a multiple of 256."""
    return -(-4 * int(2 * hidden / 3) // 256) * 256
