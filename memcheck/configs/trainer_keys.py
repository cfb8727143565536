"""Keys of ``transformers.TrainingArguments`` and of what reads the same keys. Read at transformers 5.23.0
(``training_args.py``, ``optimization.py``, ``trainer_optimizer.py``).
"""

from __future__ import annotations

from memcheck.configs.key_table import key_table

KEYS = key_table("transformers")


ADAMW = "adamw"
