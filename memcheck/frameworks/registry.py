"""Every framework memcheck knows. Adding one: write its record, name it here."""

from __future__ import annotations

from memcheck.frameworks.deepspeed import DEEPSPEED
from memcheck.frameworks.huggingface import HUGGINGFACE
from memcheck.frameworks.litgpt import LITGPT
from memcheck.frameworks.megatron import MEGATRON
from memcheck.frameworks.pytorch import PYTORCH
from memcheck.frameworks.torchtitan import TORCHTITAN
from memcheck.frameworks.torchtune import TORCHTUNE
from memcheck.frameworks.types import Framework

FRAMEWORKS: dict[str, Framework] = {
    f.name: f for f in (HUGGINGFACE, PYTORCH, TORCHTITAN, MEGATRON, DEEPSPEED, LITGPT, TORCHTUNE)
}
DEFAULT_FRAMEWORK = "huggingface"
