"""Megatron-LM's arguments, and the plan keys for the same things. Read at commit d98e8a64dd of August 2026
(``megatron/training/arguments.py``, ``core/transformer/transformer_config.py``, ``core/model_parallel_config.py``) and,
for the names of the configuration classes, at megatron-core 0.16.1.
"""

from __future__ import annotations

from memcheck.configs.config_file import ConfigFile
from memcheck.configs.evidence import any_key
from memcheck.configs.key_table import key_table
from memcheck.configs.types import KeyRow
from memcheck.frameworks.megatron.profile import FRAMEWORK as MEGATRON

KEYS = key_table("megatron")


MODEL = "model.architecture"


def underscored(argument: str) -> str:
    """``--hidden-size`` as the plan and the configuration classes spell it."""
    return argument.replace("-", "_")


def dashed(name: str) -> str:
    """The argument of a configuration key."""
    return name.replace("_", "-")


DIMENSIONS = (
    *(KeyRow(name, f"{MODEL}.{underscored(name)}") for name in KEYS.names["whole_dimensions"]),
    *(KeyRow(name, f"{MODEL}.{underscored(name)}", "flag") for name in KEYS.names["switched_dimensions"]),
    KeyRow("position-embedding-type", f"{MODEL}.position_embedding_type", "text"),
    KeyRow("normalization", f"{MODEL}.normalization", "text"),
    KeyRow("rotary-percent", f"{MODEL}.rotary_percent", "number"),
    KeyRow("moe-layer-freq", f"{MODEL}.moe_layer_freq", "text"),
    KeyRow("experimental-attention-variant", f"{MODEL}.experimental_attention_variant", "text"),
    KeyRow("linear-attention-freq", f"{MODEL}.linear_attention_freq", "text"),
    KeyRow("moe-router-score-function", f"{MODEL}.moe_router_score_function", "text"),
    KeyRow("hidden-dropout", f"{MODEL}.hidden_dropout", "number"),
    KeyRow("attention-dropout", f"{MODEL}.attention_dropout", "number"),
)
"""What the model is: the keys of the family ``megatron-lm``."""


def _kind(name: str) -> str:
    types = MEGATRON.options[name]
    if bool in types:
        return "flag"
    if list in types and str not in types:
        return "list"
    return "number" if float in types else "whole" if int in types else "text"


LISTS = frozenset(dashed(name) for name, types in MEGATRON.options.items() if list in types)
"""Arguments that take several words."""
OPTIONS = tuple(
    KeyRow(dashed(name), f"training.options.{name}", _kind(name))
    for name in MEGATRON.options
    if name not in KEYS.names["settled"]
)
"""Arguments that are options of a plan under the same name."""

OWN = (
    *(row.path for row in KEYS.rows["layout"] if row.path.endswith("parallel-size")),
    "use-checkpoint-args",
    "use-distributed-optimizer",
    "use-mcore-models",
)
"""Arguments that only Megatron-LM has."""
SHARED = (
    *(name for name in KEYS.names["whole_dimensions"] if name not in ("vocab-size", "q-lora-rank", "kv-lora-rank")),
    *(row.path for row in KEYS.rows["layout"] if row.path not in OWN),
)
"""Arguments that others have, too: several of them together are its."""


def recognise(config: ConfigFile) -> str:
    """One argument of its own, or three that it shares; what only others run has one or two of these."""
    shared = [name for name in SHARED if name in config.values]
    return any_key(*OWN)(config) or (shared[0] if len(shared) >= 3 else "")
