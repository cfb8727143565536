"""ms-swift's ``--fsdp``: a preset of its own, or a JSON file of words and their section."""

from __future__ import annotations

from memcheck.configs.config_file import load_json
from memcheck.configs.draft import Draft
from memcheck.configs.swift_keys import KEYS
from memcheck.configs.trainer_parts import TRUE, text
from memcheck.configs.trainer_split import STAGE, load_named

SWITCH, SECTION, OFFLOAD = "fsdp", "fsdp_config.", "fsdp_config.activation_cpu_offload"


def adopt_fsdp(draft: Draft) -> None:
    """Put what the preset or the file says where TrainingArguments have it (``swift/arguments/sft_args.py``)."""
    config, name = draft.config, text(draft, SWITCH)
    at = config.at(SWITCH)
    if name == "fsdp2":
        for key, value in KEYS.words["fsdp2"].items():
            config.adopt(key, value, at)
        config.values[SWITCH] = "full_shard"
    elif name.lower().endswith(".json") or config.written(name):
        found = load_named(config, name, load_json)
        if found is None:
            draft.refuse(SWITCH, f"there is no `{name}` in the config's folder", "mend the path", (STAGE,))
            config.values[SWITCH] = "full_shard"
            return
        config.values[SWITCH] = found.values.get(SWITCH, "full_shard")
        for key, value in found.values.items():
            if key.startswith(SECTION) and key != OFFLOAD:
                config.adopt(key, value, at)
        if found.values.get(OFFLOAD) in TRUE:
            effect = "activations that move to the host are priced where they are made: an upper bound"
            draft.note(SWITCH, f"`activation_cpu_offload`: {effect}")
