"""Adapters of a script whose arguments do not say that it trains adapters: the user states ``training.method``.

The reader knows PEFT's own argument names, and other names that scripts have for them
(peft 0.21 ``tuners/lora/config.py``).
"""

from __future__ import annotations

from memcheck.configs.draft import Draft
from memcheck.configs.trainer_adapters import adapters, base
from memcheck.configs.trl_keys import OTHER_ADAPTERS

STATED = ("lora", "qlora")
"""Methods that train adapters."""
RANKS = ("lora_rank", "lora_r", "peft_lora_r", "lora_dim", "r", "rank")
TARGETS = ("lora_target_modules", "target_modules", "lora_target", "lora_targets", "lora_modules", "trainable")
DROPOUTS = ("lora_dropout", "peft_lora_dropout")
SAVED = ("lora_modules_to_save", "modules_to_save", "additional_target")
DORA = ("use_dora", "lora_use_dora")
PARAMETERS = ("lora_target_parameters", "target_parameters")
COUNTS = "state what it turns on with the method: training.lora, training.base"
HARMLESS = (
    *("alpha", "lora_scale", "peft_lora_alpha", "fan_in_fan_out", "task_type", "lora_task_type"),
    *("use_rslora", "lora_use_rslora"),
)


def stated_method(draft: Draft, four: str, eight: str, switch: str) -> bool:
    """Read the adapters; whether everything is trained.

    ``four``, ``eight``: arguments that hold the base in bits; ``switch``: one that may turn adapters or bits on.
    """
    if four and draft.config.method != "qlora":
        message = f"`{four}`: the base is held in 4 bits, and training.method={draft.config.method} was stated"
        draft.refuse(four, message, "state it: --set training.method=qlora")
    if eight:
        base(draft, "int8", eight)

    def name(known: tuple[str, ...]) -> str:
        return next((each for each in known if draft.config.has(each)), known[0])

    names = OTHER_ADAPTERS._replace(
        rank=name(RANKS),
        targets=(name(TARGETS),),
        dropout=name(DROPOUTS),
        saved=name(SAVED),
        dora=name(DORA),
        parameters=name(PARAMETERS),
    )
    adapters(draft, names, stated=True)
    draft.harmless(HARMLESS)
    if switch and switch not in {*RANKS, *TARGETS, *DROPOUTS, *SAVED, *DORA, *PARAMETERS, *HARMLESS}:
        draft.note(switch, COUNTS)
    return False
