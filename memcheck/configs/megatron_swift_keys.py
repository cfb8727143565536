"""Keys of Megatron-SWIFT, ms-swift over Megatron-Core, and the plan keys. Read at ms-swift 3602360a of August 2026
(``swift/megatron/arguments/*.py``, ``swift/megatron/utils/megatron_lm_utils.py``) and mcore-bridge 1.6.5
(``config/model_config.py``, ``model/gpt_model.py``).
"""

from __future__ import annotations

import re

from memcheck.configs import megatron_keys
from memcheck.configs.arguments import without_comment
from memcheck.configs.config_file import ConfigFile
from memcheck.configs.key_table import key_table
from memcheck.configs.types import KeyRow
from memcheck.frameworks.megatron.profile import FRAMEWORK as MEGATRON

KEYS = key_table("megatron-swift")


COMMANDS = ("sft", "pt", "rlhf")
MODEL = "model"

SETTLED = (*key_table("megatron").names["settled"], "attention_backend", "moe_router_dtype", "mtp_num_layers")
"""Options that the plan says with a key of its own, or that only code with several of them can read."""
VIRTUAL = "microbatch_group_size_per_virtual_pipeline_stage"
OPTIONS = (
    *(
        KeyRow(row.key.rpartition(".")[2], row.key, row.kind)
        for row in megatron_keys.OPTIONS
        if row.key.rpartition(".")[2] not in SETTLED
    ),
    KeyRow("microbatch_group_size_per_vp_stage", f"training.options.{VIRTUAL}"),
)
LISTS = frozenset(
    {*(name for name, types in MEGATRON.options.items() if list in types), *key_table("transformers").names["lists"]}
)

OFF = (None, False, "false", "False", "none", "None", 0, 0.0, "0", "0.0", "", "[]")
"""Values of the above that ask for nothing."""

_MEGATRON = re.compile(rf"(?:^|[\s;&])megatron\s+({'|'.join(COMMANDS)})(?=\s|$)")


def command(config: ConfigFile) -> str:
    """The command of Megatron-SWIFT that a script runs."""
    lines = (without_comment(line)[:2000] for line in config.lines)
    return next((found[1] for line in lines if (found := _MEGATRON.search(line))), "")


def recognise(config: ConfigFile) -> str:
    """The key that shows that a config is Megatron-SWIFT's; empty where none does.

    The config has a model with ``megatron sft`` or with two of Megatron's keys, or that command with one such key.
    """
    named = config.has(MODEL) and isinstance(config.values[MODEL], str)
    found = [name for name in KEYS.evidence[0] if config.has(name)]
    if named and (command(config) or len(found) > 1):
        return MODEL
    return found[0] if found and command(config) else ""
