"""nanotron's keys, and the plan keys for the same things. Read at nanotron 2411b022 of April 2026
(``src/nanotron/config/*.py``, ``optim/gradient_accumulator.py``, ``optim/zero.py``, ``helpers.py``).
"""

from __future__ import annotations

from memcheck.configs.evidence import all_keys
from memcheck.configs.key_table import key_table

KEYS = key_table("nanotron")

recognise = all_keys(("tokens.micro_batch_size", "tokens.sequence_length"), ("model.model_config.hidden_size",))

CONFIG = "model.model_config."
ARCHITECTURE = "model.architecture."
KINDS = tuple(KEYS.words["classes"])
