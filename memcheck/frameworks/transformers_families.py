"""The models that transformers builds: every family that is read, but for Megatron-LM's own GPT."""

from __future__ import annotations

from memcheck.job.families import Families
from memcheck.models.registry import FAMILIES

TRANSFORMERS = Families(
    tuple(name for name in FAMILIES if not name.startswith("megatron")),
    source="transformers models/*/modeling_*.py",
)
