"""Keys of TRL and of what is built on it, and the plan keys for them. Read at trl f2cd5771 of July 2026
(``trl/trainer/base_config.py``, ``model_config.py``, ``sft_config.py``, ``dpo_config.py``), alignment-handbook's
``src/alignment/configs.py`` and open-instruct's ``finetune.py``.
"""

from __future__ import annotations

import re

from memcheck.configs.config_file import ConfigFile
from memcheck.configs.evidence import all_keys, any_key
from memcheck.configs.key_table import key_table
from memcheck.configs.trainer_script import commands, objectives_named, recipe

KEYS, TRAINER = key_table("trl"), key_table("transformers")


def recognise(config: ConfigFile) -> str:
    """The key that shows that a config is TRL's, next to TrainingArguments and a model; empty where none does."""
    key = recognise_arguments(config)
    if not key:
        return _launched(config)
    if any(re.search(r"\btrl\s+[a-z]", line) for line in config.lines if not line.lstrip().startswith("#")):
        return key
    return key if _alone(config) or objectives_named(config, KEYS.names["scripts"]) else ""


def recognise_arguments(config: ConfigFile) -> str:
    """A model's name and an argument that only a training has; or a script of TRL's or transformers' name, a model and
    any further argument of theirs.
    """
    key = _arguments(config)
    if key or config.path.endswith(KEYS.names["files"]):
        return key
    stated = {name.replace("-", "_"): name for name in config.values}
    names = commands(config)
    if not names or "model_name_or_path" not in stated:
        return ""
    of_examples = TRAINER.as_set("example_scripts")
    known = bool(objectives_named(config, KEYS.names["scripts"])) or any(f"run_{name}" in of_examples for name in names)
    fields = TRAINER.as_set("training_arguments", "trl", "examples") - {"model_name_or_path"}
    further = known and not fields.isdisjoint(stated)
    return stated["model_name_or_path"] if further or not KEYS.as_set("trained").isdisjoint(stated) else ""


def _launched(config: ConfigFile) -> str:
    """A launch line that leaves all to a recipe: ``accelerate launch scripts/run_sft.py recipe.yaml``."""
    if not objectives_named(config, KEYS.names["scripts"]) or config.path.endswith(KEYS.names["files"]):
        return ""
    if any(re.search(r"\b(?:swift|llamafactory)\b", line) for line in config.lines):
        return ""
    return "config" if config.has("config") or recipe(config)[0] else ""


_arguments = all_keys(*KEYS.evidence)
_alone = any_key(*KEYS.names["trl_alone"])

OTHER_TITLE = "transformers"
"""Whose defaults a script has that is none of TRL's."""

OTHER_ADAPTERS = KEYS.adapters["adapters"]._replace(default_rank=None, default_dropout=None)
"""Names of the adapter arguments of an unknown script, without defaults: its defaults are not known."""
OPEN_ADAPTERS = KEYS.adapters["adapters"]._replace(
    rank="lora_rank",
    default_rank=64,
    targets=("lora_target_modules",),
    default_targets=["q_proj", "o_proj", "v_proj", "k_proj", "gate_proj", "up_proj", "down_proj"],
    default_dropout=0.1,
)

OLMO_CORE = re.compile(r"^[^#]*\b(open_instruct/(?:olmo_core_finetune|dpo)\.py)")
"""open-instruct's scripts that are no loop over transformers' classes."""
