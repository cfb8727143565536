"""LLaMA-Factory's keys, and the plan keys for the same things. Read at ff6d4d12 of August 2026
(``src/llamafactory/hparams/*.py``, ``model/adapter.py``, ``model/model_utils/checkpointing.py``,
``model/model_utils/liger_kernel.py``; the second generation: ``src/llamafactory/v1/config/*.py``,
``v1/core/base_trainer.py``).
"""

from __future__ import annotations

from memcheck.configs.config_file import ConfigFile
from memcheck.configs.key_table import key_table

KEYS = key_table("llamafactory")


def recognise(config: ConfigFile) -> str:
    """A training of either generation; a chat or an export has neither a stage nor data."""
    if config.has("model_name_or_path"):
        return next((key for key in ("finetuning_type", "cutoff_len", "stage") if config.has(key)), "")
    if config.has("stage") and config.has("finetuning_type"):
        return "finetuning_type"  # the model is its first release's own
    if config.has("model"):
        return next((key for key in config.values if key.startswith(KEYS.names["second"])), "")
    return ""


_MEGATRON = "Megatron's parallelism (mcore_adapter, Megatron-Bridge)"
OLD_PIXELS = "image_resolution"
