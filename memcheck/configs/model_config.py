"""A Hugging Face config.json: what tells it, and the keys of it that a training config overrides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memcheck.configs.draft import Draft

TYPE = "model_type"
SIZES = ("hidden_size", "n_embd", "d_model", "num_hidden_layers", "n_layer", "num_layers")
PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
"""Sections of a model with a tower that hold the sizes of its language model."""


def describes_model(config: Mapping[str, Any]) -> bool:
    """Whether a JSON object is a model's config: it has a type and sizes. ms-swift's arguments have a type alone."""
    return isinstance(config.get(TYPE), str) and any(name in config for name in (*SIZES, *PARTS))


SIZELESS = frozenset(
    (
        "trust_remote_code",
        "use_cache",
        "architectures",
        "attn_implementation",
        "output_hidden_states",
        "output_attentions",
        "output_router_logits",
        "rope_scaling",
        "rope_parameters",
        "rope_theta",
        "rms_norm_eps",
        "layer_norm_eps",
        "max_position_embeddings",
        "initializer_range",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "router_aux_loss_coef",
        "norm_topk_prob",
    )
)
"""Keys of a model's configuration that set no size of a decoder with rotary positions."""


KEPT = ("output_hidden_states", "output_attentions", "output_router_logits")
"""Switches by which every layer returns more than its output, and the model keeps all of it until its end."""


def changed(draft: Draft, prefix: str, sizeless: frozenset[str] = SIZELESS) -> dict[str, object]:
    """The keys below ``prefix``, which ends with a dot, but for those without a size; nested as the file has them."""
    found: dict[str, object] = {}
    for key, value in draft.config.values.items():
        if not sized(key, prefix, sizeless):
            continue
        *sections, name = key.removeprefix(prefix).split(".")
        table = found
        for each in sections:
            below = table.setdefault(each, {})
            table = below if isinstance(below, dict) else {}
        table[name] = value
    return found


def sized(key: str, prefix: str, sizeless: frozenset[str] = SIZELESS) -> bool:
    """Whether a key below ``prefix`` sets a size."""
    return key.startswith(prefix) and key.removeprefix(prefix).partition(".")[0] not in sizeless


def override(draft: Draft, section: str) -> None:
    """State ``model.overrides`` where a section of this name changes a size."""
    prefix = f"{section}."
    found = changed(draft, prefix)
    if found:
        draft.set("model.overrides", found, next(key for key in draft.config.values if sized(key, prefix)))
    for path in (f"{prefix}{name}" for name in KEPT):
        if draft.config.values.get(path) is True:
            draft.note(path, "the second output of every layer is not in the estimate")
    draft.config.see(section, *(key for key in draft.config.values if key.startswith(prefix)))
