"""ms-swift's keys, and the plan keys for the same things. Read at 3602360a of August 2026 (``swift/arguments/*.py``,
``swift/trainers/arguments.py``, ``swift/config/*.json``).
"""

from __future__ import annotations

import re

from memcheck.configs.config_file import ConfigFile
from memcheck.configs.key_table import key_table
from memcheck.configs.trainer_script import commands

KEYS = key_table("ms-swift")


OWN_COMMAND = re.compile(r"[^#]*?(?:^|[\s;&])swift\s+((?:sft|pt|rlhf)-[\w-]+)")
"""A command of a fork, which is called after one of these."""
BINARY_SCALES = frozenset(
    (
        *("", "default", "last_round", "all", "base", "ignore_empty_think", "ignore_think_prefix"),
        *("last_round_with_ignore_empty_think", "all_with_ignore_empty_think"),
    )
)
"""Parts of ``loss_scale`` that only say which tokens count (``swift/loss_scale``); others weigh them."""
LISTS = key_table("transformers").as_set("lists") | {"callbacks"}
"""Arguments of ms-swift that take several words."""


def recognise(config: ConfigFile) -> str:
    """The key that shows that a config is ms-swift's: the tuner's, where the config also has a model; or the model's,
    in a script with a command of ``swift``. Empty where neither holds.
    """
    model = next((name for name in KEYS.names["models"] if config.has(name)), "")
    tuner = next((name for name in (*KEYS.names["tuners"], "rlhf_type") if config.has(name)), "")
    if model and tuner:
        return tuner
    called = any("swift " in line for line in config.lines) and set(KEYS.names["commands"]) & set(commands(config))
    return (model or next((name for name in KEYS.names["named"] if config.has(name)), "")) if called else ""
